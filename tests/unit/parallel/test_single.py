"""One process: every exchange is the identity."""

import torch
from torch import nn

from src.config.schema import DDPConfig, ParallelConfig
from src.parallel import build_parallel
from src.parallel.ddp import DDP
from src.parallel.single import Single
from src.runtime.rank import Rank


def test_the_name_chooses_the_mode():
    assert type(build_parallel(ParallelConfig(), rank=Rank())) is Single
    assert type(build_parallel(DDPConfig(), rank=Rank())) is DDP
    assert build_parallel(DDPConfig(), rank=Rank()).backend == "gloo"
    assert build_parallel(DDPConfig(), rank=Rank(device=torch.device("cuda", 0))).backend == "nccl"


def test_alone_everything_stays_as_it_is(fp32):
    single = Single(Rank())
    single.enter()
    model = nn.BatchNorm1d(2)
    model.running_mean.fill_(3)
    assert single.wrap(model, fp32) is model
    assert single.owned(model) is single.whole(model) is model
    single.sync_buffers(model)
    assert model.running_mean.tolist() == [3, 3]
    tensor = torch.tensor([1.0, 2.0])
    assert single.sum_(tensor) is tensor
    assert tensor.tolist() == [1, 2]
    assert single.gather("a") == ["a"]
    single.exit()


def test_gradients_add_up_over_micro_batches():
    single, model = Single(Rank()), nn.Linear(2, 1)
    for last in (False, False, True):
        with single.accumulate(model, last=last):
            model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad.tolist() == [[3, 3]]

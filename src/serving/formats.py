"""A network with its preprocessing as one graph, and the formats it can be written in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from src.data.base import InputFormat, Placement
from src.data.preprocess import Preprocess

Run = Callable[[Tensor], Tensor]
"""uint8 pixels [N, C, S, S] to float32 logits [N, classes], both on the CPU."""
CPU = Placement(0, 1, 1, torch.device("cpu"), channels_last=False)


class PixelsToLogits(nn.Module):
    """uint8 [N, C, S, S] to float32 [N, classes]: normalise, enlarge if the network wants it larger, and the network."""

    def __init__(self, network: nn.Module, form: InputFormat) -> None:
        super().__init__()
        self.network = network
        self._preprocess = Preprocess(form, placement=CPU)

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits of pixels 0 to 255."""
        logits: Tensor = self.network(self._preprocess(pixels))
        return logits


def write_pt2(model: PixelsToLogits, example: Tensor, path: Path) -> Run:
    """A torch.export program with any batch size, traced with ``example``; returns what the file computes."""
    program = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    torch.export.save(program, path)
    loaded: Run = torch.export.load(path).module()
    return loaded


def write_onnx(model: PixelsToLogits, example: Tensor, path: Path) -> Run:
    """An ONNX graph with any batch size, input ``pixels`` and output ``logits``, traced with ``example``; returns what onnxruntime does."""
    import onnxruntime

    torch.onnx.export(
        model,
        (example,),
        path,
        input_names=["pixels"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda batch: torch.from_numpy(session.run(["logits"], {"pixels": batch.numpy()})[0])


def write_safetensors(model: PixelsToLogits, about: dict[str, Any], fresh: nn.Module, path: Path) -> Run:
    """The network's weights with ``about`` as JSON text in the metadata; returns what ``fresh``, with them loaded, computes."""
    from safetensors.torch import load_file, save

    weights = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in model.network.state_dict().items()}
    metadata = {key: json.dumps(value, ensure_ascii=False) for key, value in about.items()}
    path.write_bytes(save(weights, metadata=metadata))  # save_file would make a file for its owner alone
    fresh.load_state_dict(load_file(path))
    return PixelsToLogits(fresh.eval(), model._preprocess.form)

"""A network of the user's own."""

from torch import nn
from torch.nn.parameter import is_lazy

from src.config.schema import CustomModelConfig
from src.errors import ConfigError
from src.factory import call_factory, import_factory


def build(config: CustomModelConfig, *, num_classes: int, channels: int, image_size: int) -> nn.Module:
    """What the function ``config.factory`` returns; it gets ``config.kwargs`` and those of the three numbers that its signature names.

    Raises:
        ConfigError: no such function, arguments that don't fit it, a result that is no ``torch.nn.Module``, or one without its weights yet.
    """
    function = import_factory(config.factory, key="model.factory")
    offered = {"num_classes": num_classes, "channels": channels, "image_size": image_size}
    model = call_factory(function, offered=offered, kwargs=config.kwargs, key="model.kwargs")
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model.factory={config.factory} returned a {type(model).__name__}; it must return a torch.nn.Module")
    if lazy := next((name for name, tensor in model.named_parameters() if is_lazy(tensor)), None):
        raise ConfigError(f"model.factory={config.factory} returned a network whose {lazy} has no shape yet; call it once on zeros before")
    return model

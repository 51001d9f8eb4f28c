"""The loader for torch: a DataLoader that counts, datasets for other DataLoaders, and the rows of a process in a DeviceMesh."""

try:
    import torch  # noqa: F401 - the modules below need it
except ImportError as error:
    raise ImportError("datapipe.loader.torch needs torch: pip install datapipe[torch]") from error

from datapipe.loader.torch.dataloader import StreamingDataLoader, dataloader
from datapipe.loader.torch.dataset import StreamingDataset
from datapipe.loader.torch.mesh import mesh_of

__all__ = ["StreamingDataLoader", "StreamingDataset", "dataloader", "mesh_of"]

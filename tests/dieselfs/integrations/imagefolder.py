"""torchvision's datasets, also where it was built for CUDA and torch was not: as examples/train_imagefolder.py does it."""

import torch

try:
    from torchvision.datasets import DatasetFolder, ImageFolder
except RuntimeError:
    operators = torch.library.Library("torchvision", "DEF")
    operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision.datasets import DatasetFolder, ImageFolder

__all__ = ["DatasetFolder", "ImageFolder"]

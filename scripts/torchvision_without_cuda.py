"""Let torchvision load beside a PyTorch that was built without CUDA.

The torchvision of PyPI is built for CUDA. Beside another PyTorch its compiled library does not
load, and then its import fails because nothing has declared the operators `nms` and `qnms`. This
module declares them when torchvision is imported; datasets and transforms call neither.

`scripts/setup.sh torch` copies this module into a virtual environment that needs it, with a `.pth`
file that imports it when Python starts.
"""

import sys


class DeclareOperators:
    """A finder that finds nothing, and notices the import of torchvision."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            self.library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            self.library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


finder = DeclareOperators()
sys.meta_path.insert(0, finder)

"""How new weights reach a vLLM worker: from a folder that the trainer wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform


@dataclass
class NoInit(WeightTransferInitInfo):
    """Nothing is to be set up: worker and trainer share a file system."""


@dataclass
class Folder(WeightTransferUpdateInfo):
    """One update: the safetensors files of a Hugging Face model."""

    files: list[str]
    refresh_head: bool = True  # False shows what happens without the cure below


class FolderTransferEngine(WeightTransferEngine[NoInit, Folder]):
    """Loads weights in checkpoint format from files, all of them in `update_weights`.

    The model is not touched before every file could be opened, so that a bad folder leaves the old weights serving.
    """

    init_info_cls = NoInit
    update_info_cls = Folder
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Nothing to do: see `receive_weights`."""

    def finish_weight_update(self) -> None:
        """Nothing to do: see `receive_weights`."""

    def receive_weights(self, update_info: Folder) -> None:
        """Load the weights and let each layer prepare them for its kernels."""
        opened = [safe_open(path, framework="pt") for path in update_info.files]
        model: Any = self.model
        initialize_layerwise_reload(model)
        model.load_weights((name, file.get_tensor(name)) for file in opened for name in file.keys())  # noqa: SIM118
        finalize_layerwise_reload(model, self.model_config)
        if update_info.refresh_head and current_platform.is_cpu():
            self._refresh_head()

    def _refresh_head(self) -> None:
        # On a CPU the head multiplies by a packed copy of its weight. A head tied to the embedding has no weight of
        # its own in the checkpoint, so that reloading passes it by: its copy would stay that of the old weights.
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        """Nothing to release."""

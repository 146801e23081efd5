"""What the YAML files of the stacks say; braces as in commands.py."""

from typing import Any

LLAMAFACTORY: dict[str, Any] = {
    "model_name_or_path": "{inputs}/moe",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "dataset": "chat",
    "dataset_dir": "data",
    "template": "default",
    "cutoff_len": 256,
    "output_dir": "{out}",
    "per_device_train_batch_size": 4,
    "max_steps": 3,
    "learning_rate": 0.01,
    "logging_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "seed": 3,
    "disable_gradient_checkpointing": True,
    "preprocessing_num_workers": 1,
}

LLAMAFACTORY_DATA = {
    "chat": {
        "file_name": "{inputs}/alpaca/train.jsonl",
        "columns": {"prompt": "instruction", "query": "input", "response": "output"},
    }
}
LLAMAFACTORY_FILES = {"x.yaml": LLAMAFACTORY, "data/dataset_info.json": LLAMAFACTORY_DATA}

AXOLOTL: dict[str, Any] = {
    "base_model": "{inputs}/moe",
    "datasets": [{"path": "{inputs}/chat/train.jsonl", "ds_type": "json", "type": "chat_template"}],
    "chat_template": "chatml",
    "sequence_len": 256,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "max_steps": 3,
    "num_epochs": 1,
    "learning_rate": 0.01,
    "optimizer": "adamw_torch",
    "lr_scheduler": "cosine",
    "output_dir": "{out}",
    "dataset_prepared_path": "prepared",
    "logging_steps": 1,
    "seed": 3,
    "bf16": False,
    "fp16": False,
    "tf32": False,
    "flash_attention": False,
    "sdp_attention": True,
    "sample_packing": False,
    "pad_to_sequence_len": False,
    "gradient_checkpointing": False,
    "dataset_num_proc": 1,
    "dataloader_num_workers": 0,
    "use_cpu": True,
    "use_wandb": False,
    "special_tokens": {"pad_token": "<pad>"},
    "save_safetensors": True,
}

OUMI: dict[str, Any] = {
    "model": {"model_name": "{inputs}/moe", "torch_dtype_str": "float32", "device_map": None, "model_max_length": 256},
    "data": {
        "train": {
            "datasets": [
                {"dataset_name": "text_sft_jsonl", "dataset_path": "{inputs}/chat/train.jsonl"},
            ]
        }
    },
    "training": {
        "trainer_type": "TRL_SFT",
        "output_dir": "{out}",
        "per_device_train_batch_size": 4,
        "max_steps": 3,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "enable_wandb": False,
        "enable_tensorboard": False,
        "save_final_model": True,
        "seed": 3,
        "dataloader_num_workers": 0,
        "enable_gradient_checkpointing": False,
    },
}

LIGHTNING_CLI: dict[str, Any] = {
    "trainer": {
        "accelerator": "cpu",
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "log_every_n_steps": 1,
        "default_root_dir": "{out}",
    }
}

"""A GPT-2 of transformers, in its own Trainer: characters of this project's README, four bits a weight by channel.

pip install 'paretorch[transformers]'
python examples/language_model.py
"""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import paretorch as pt
from paretorch.training.transformers import PlanCallback

STEPS, FINETUNE, LENGTH = 90, 30, 64


def main() -> None:
    torch.manual_seed(0)
    text = (Path(__file__).parents[1] / "README.md").read_text()
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(letter) for letter in text])
    data = [{"input_ids": part, "labels": part} for part in tokens.unfold(0, LENGTH, 16)]
    config = GPT2Config(
        vocab_size=len(letters), n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)

    plan = pt.compress(model, pt.SMOL(target_bits=4.0, group="channel", scale="auto"), steps=STEPS)
    optimizer = torch.optim.AdamW(plan.param_groups(weight_decay=0.01), lr=3e-3)
    arguments = TrainingArguments(
        output_dir="language-model", max_steps=STEPS + FINETUNE, per_device_train_batch_size=16, report_to=[],
        logging_steps=25, save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[PlanCallback()])
    trainer.train()  # the plan is rounded after STEPS, the others fine-tune

    small = plan.finalize()
    pt.save(small, "language-model.pare")
    print(pt.report(pt.load("language-model.pare", into=GPT2LMHeadModel(config))))


if __name__ == "__main__":
    main()

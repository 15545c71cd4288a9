"""A trained language model that a CPU can fine-tune: stories15M with the words of its own stories alone.

The network, stories15M as a folder of transformers, writes rows of 256 ids, sampled at temperature 1 from id 1. Embedding rows of ids that it did
not write are dropped (the embedding is tied to the output), so that 7 M of 15 M weights are left. DEST is then a folder that transformers can load, with
ids.pt, one row per story: what `pretrained_precision.py` and `shrink.py --bed benchmarks/story_bed.py --name llama` take.

    python benchmarks/story_bed.py SOURCE DEST
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

LENGTH, TRAINED, BATCH = 256, 732, 52  # the last 100 of 832 rows are held out


@torch.no_grad()
def write_stories(model: nn.Module, rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(0, rows, BATCH):
        ids = torch.ones(BATCH, 1, dtype=torch.long)
        cache: Any = None
        while ids.shape[1] < LENGTH:
            out = model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            ids = torch.cat([ids, torch.multinomial(out.logits[:, -1].softmax(-1), 1, generator=generator)], 1)
        found.append(ids)
        print(f"{sum(map(len, found))} of {rows} stories", flush=True)
    return torch.cat(found)[:rows]


def trim(model: Any, ids: Tensor, dest: Path) -> None:
    """Keep the rows of the embedding that the stories use, in order."""
    used, renamed = ids.unique(return_inverse=True)
    config = model.config
    state = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
    state["model.embed_tokens.weight"] = state["model.embed_tokens.weight"][used]
    config.vocab_size = len(used)
    config.bos_token_id = config.eos_token_id = None
    small = type(model)(config)
    small.load_state_dict(state, strict=False)
    small.tie_weights()
    small.save_pretrained(dest)
    torch.save(renamed, dest / "ids.pt")
    print(f"{dest}: {sum(p.numel() for p in small.parameters()):,} weights, {len(used)} words, {len(ids)} rows")


# What benchmarks/shrink.py asks of a bed; BED names the folder.


def llama() -> nn.Module:
    from transformers import LlamaForCausalLM

    model: nn.Module = LlamaForCausalLM.from_pretrained(os.environ["BED"])
    model.config.use_cache = False
    return model.eval()


def llama_batches(seed: int) -> Iterator[dict[str, Tensor]]:
    ids = torch.load(Path(os.environ["BED"]) / "ids.pt")[:TRAINED]
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randint(len(ids), (4,), generator=generator)
        at = int(torch.randint(0, LENGTH - 64 + 1, (1,), generator=generator))
        yield {"input_ids": ids[rows, at : at + 64]}


@torch.no_grad()
def llama_eval(model: nn.Module) -> float:
    total, count = 0.0, 0
    for part in torch.load(Path(os.environ["BED"]) / "ids.pt")[TRAINED : TRAINED + 100].split(20):
        logits = model(input_ids=part).logits[:, :-1]
        total += float(nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
        count += part[:, 1:].numel()
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--rows", type=int, default=832)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(options.source).eval()
    trim(model, write_stories(model, options.rows, options.seed), options.dest)


if __name__ == "__main__":
    main()

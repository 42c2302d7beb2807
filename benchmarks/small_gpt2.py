"""A small GPT-2 for trying out fine-tuning, as a folder of Hugging Face's transformers.

python benchmarks/small_gpt2.py my-model

Nothing is downloaded: the tokenizer (1,000 tokens; digits are never merged) and the weights (random, then trained)
are made from the later half of Python's help topics; audits fine-tune on the earlier half (data.fraction .5).
"""

import argparse
import math
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from memlib.data.text.documents import open_documents
from memlib.specs.text import TopicsSource

TOKENS, WINDOW, WIDTH, LAYERS, HEADS = 1000, 128, 128, 4, 4
BATCH, EPOCHS, RATE = 16, 15, 2e-3


def main() -> None:
    """Train a tokenizer and a model; write both to a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    documents = list(open_documents(TopicsSource()).read())
    texts = documents[len(documents) // 2 :]
    tokenizer = train_tokenizer(texts)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=WINDOW, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    losses = train(model, tokenizer, texts, epochs=options.epochs)
    tokenizer.save_pretrained(options.folder)
    model.save_pretrained(options.folder)
    print(f"{options.folder}: {model.num_parameters():,} weights, loss {losses[0]:.2f} to {losses[-1]:.2f} nats a token")


def train_tokenizer(texts: list[str]) -> transformers.PreTrainedTokenizerFast:
    """Train a byte-pair tokenizer with one token for both beginning and end."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=TOKENS, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>", model_max_length=WINDOW
    )


def train(
    model: transformers.GPT2LMHeadModel, tokenizer: transformers.PreTrainedTokenizerFast, texts: list[str], *, epochs: int
) -> list[float]:
    """Train the model on consecutive windows of the documents; return the mean loss of each epoch."""
    rows = tokenizer(texts, verbose=False).input_ids
    stream = torch.tensor([token for row in rows for token in (*row, tokenizer.eos_token_id)])
    windows = stream[: len(stream) // WINDOW * WINDOW].reshape(-1, WINDOW)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    steps, history = epochs * math.ceil(len(windows) / BATCH), []
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)
    for _ in range(epochs):
        losses = []
        for chosen in torch.randperm(len(windows)).split(BATCH):
            loss = model(input_ids=windows[chosen], labels=windows[chosen]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        history.append(sum(losses) / len(losses))
    return history


if __name__ == "__main__":
    main()

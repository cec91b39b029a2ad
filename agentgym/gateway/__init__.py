"""The gateway: an OpenAI-compatible endpoint that understands the conversations it serves and keeps what to learn from.

    request -> openai (checked) -> reading (whose, which conversation, main or side) -> service (ids in, ids out)
        -> ledger (a durable row before the answer's end) -> feed (completed turns with their next state)

Importing it loads no web framework; `app` does.
"""

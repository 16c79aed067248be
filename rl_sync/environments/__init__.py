"""Environments: tasks of one turn or of many, which answer the policy's replies.

An environment deals in messages, and the policy in token ids. Between them stand the rendering of
conversations, the bridge from one turn's ids to the next, and the record of an episode's tokens.
"""

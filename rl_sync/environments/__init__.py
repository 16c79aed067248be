"""Environments: tasks of one turn or of many, which answer the policy's replies.

An environment works with messages, and the policy with token ids. Between them are the rendering of
conversations, the bridge from one turn's ids to the next, and the record of an episode's tokens.
"""

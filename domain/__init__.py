"""The nouns, events, actions and protocols of the house. Standard library only, frozen, no IO."""

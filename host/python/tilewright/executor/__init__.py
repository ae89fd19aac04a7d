"""Plans carried out on the caller's own modules, by the caller's own PyTorch.

Modules are called, never copied: hooks that load, move or cast weights work as they do elsewhere. Importing this
package imports nothing; its modules import PyTorch.
"""

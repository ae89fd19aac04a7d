"""Writes entities.txt: the named character references of HTML, as Python's `html.entities` has them.
The list is that of the HTML Standard.

    python entities.py > entities.txt
"""

import html.entities

for name, text in sorted(html.entities.html5.items()):
    print(name, *(f"{ord(c):X}" for c in text))

"""Attacks: what strangers and clients may try on a gateway, and what it costs the others.

Each attack runs in a process of its own and speaks to a real gateway by nothing but sockets: it
shares no code with the product (``wire``, ``attacker`` and the families: ``strangers``,
``logs``, ``clients``, ``queries``, ``shapes``, ``eventer``, ``rsb``). Meanwhile an honest client
pings, queries, registers and connects (``observer``), the process is measured (``meter``), and
afterwards it has to recover (``scenario``).
"""

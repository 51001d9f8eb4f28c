"""Language models by HTTP: one client of endpoints that speak the API of OpenAI, and a cache of their answers."""

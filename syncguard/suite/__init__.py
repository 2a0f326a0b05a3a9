"""The ready suite: run it against your own adapter.

``pytest --pyargs syncguard.suite --syncguard-engine mypackage:make_engine``
"""

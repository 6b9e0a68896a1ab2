import gc, pytest
@pytest.fixture(autouse=True, scope="session")
def frozen():
    gc.collect(); gc.freeze()

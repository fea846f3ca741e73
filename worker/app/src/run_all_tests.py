from gpuworker.accept.legacy_cli import run_all_tests

run_all_tests()

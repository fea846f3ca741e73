from gpuworker.accept.legacy_cli import ddp_tests

ddp_tests()

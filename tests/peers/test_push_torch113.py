# SPDX-License-Identifier: Apache-2.0
"""wsync-push into endpoints of torch 1.13."""
import push_cases

push_cases.main("1.13")

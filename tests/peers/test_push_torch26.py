# SPDX-License-Identifier: Apache-2.0
"""wsync-push into endpoints of torch 2.6."""
import push_cases

push_cases.main("2.6")

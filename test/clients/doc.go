// SPDX-License-Identifier: Apache-2.0

// Package clients has the tests in which real container runtimes call CNI plugins:
// libcni, cnitool, containerd by its own client and by CRI, and podman. Each runs on
// a machine of the test's own (machine_test.go), where plugins and runtimes have all
// in the usual places. The plugins are listed in plugin_test.go; Debian's reference
// plugins are there to show that the tests are right.
package clients

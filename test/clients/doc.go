// SPDX-License-Identifier: Apache-2.0

// Package clients tests CNI plugins with real container runtimes: libcni, cnitool, containerd with its own client and
// with CRI, and podman. Each test runs in its own namespaces (machine_test.go), in which plugins and runtimes use
// their default paths. plugin_test.go lists the plugins; the reference plugins of Debian validate the tests.
package clients

// SPDX-License-Identifier: Apache-2.0

// Package install puts the CNI plugin and a network configuration where container
// runtimes look for them, and takes them away again. A runtime that looks at any
// moment, or after a crash at any moment, finds each file whole or not at all, and
// never a configuration without its plugin.
package install

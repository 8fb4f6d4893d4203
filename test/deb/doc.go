// SPDX-License-Identifier: Apache-2.0

// Package deb has the tests of the Debian package: it is built as make deb builds
// it, and installed into a root of the test's own.
package deb

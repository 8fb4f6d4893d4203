// SPDX-License-Identifier: Apache-2.0

// Package deb tests the Debian package: the tests build it as make deb does, and install
// it into a temporary root.
package deb

// SPDX-License-Identifier: Apache-2.0

// Package testkit is what our tests that use the real kernel share:
// requirements, namespaces, echo servers. Only tests import it.
package testkit

// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"context"
	"testing"

	"mustang/internal/testkit"
)

// TestVersions adds pods with a configuration in each version of the specification that
// runtimes still use. The result has the same version.
func TestVersions(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	p := ours()[0]
	m.install(t, p)
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			p := p
			p.version = version
			c, ns := newLibcni(t, m, p), testkit.Namespace(t, "pod")
			c.published = ns
			checkPorts(t, m, c.add(t, ns))
			err := c.do(func(context.Context) error {
				cached, err := c.cni.GetNetworkListCachedResult(c.list, c.conf(ns))
				if err == nil && cached.Version() != version {
					t.Errorf("the result is of version %s", cached.Version())
				}
				return err
			})
			testkit.Check(t, err == nil, "%v", err)
			if version >= "0.4.0" {
				err := c.check(ns)
				testkit.Check(t, err == nil, "CHECK: %v", err)
			}
			err = c.del(c.conf(ns))
			testkit.Check(t, err == nil, "DEL: %v", err)
			checkLeases(t, m)
		})
	}
}

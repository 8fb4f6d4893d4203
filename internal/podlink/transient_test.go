// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// TestNoTransientPeer watches the host while pods come and go: apart from
// its own devices nothing may appear in it, not even for a moment.
func TestNoTransientPeer(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode Mode) {
		f := newFixture(t, mode, 0)
		pod := f.newPod(t, 0)
		updates, done := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
		err := f.network.Host.Do(func() error { return netlink.LinkSubscribe(updates, done) })
		if err != nil {
			t.Fatal(err)
		}
		f.create(t, pod)
		if err := mode.Delete(f.network, pod); err != nil {
			t.Fatal(err)
		}
		addBridge(t, f.network.Host, "sentinel")
		ours := map[string]bool{
			"lo": true, uplinkName: true, "wire": true, DefaultBridge: true, HostSlave: true, IPVLANHostSlave: true, pod.HostIfName: mode.HostSide() || mode.Needs() == NeedsOpenVSwitch,
		}
		deadline := time.After(5 * time.Second)
		for {
			select {
			case update := <-updates:
				name := update.Attrs().Name
				if name == "sentinel" {
					close(done)
					return
				}
				if !ours[name] {
					t.Errorf("device %q appeared in the host", name)
				}
			case <-deadline:
				t.Fatal("no message for the last device")
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mustang/internal/nl"
)

// networkTimeout is how long the guest waits for its network device, and for the
// device's carrier.
const networkTimeout = 20 * time.Second

// interior is how a guest's network device is to be.
type interior struct {
	MAC       string
	MTU       int
	Addresses []netip.Prefix
	Gateways  []netip.Addr
}

// networkSettings are those of pods: addresses are usable at once, and nobody but
// the host says what routes there are. They are switched off.
var networkSettings = []string{
	"net/ipv6/conf/eth0/accept_dad", "net/ipv6/conf/eth0/accept_ra", "net/ipv6/conf/eth0/accept_redirects",
	"net/ipv4/conf/eth0/accept_redirects", "net/ipv4/conf/all/accept_redirects",
}

// networkDevice is what the kernel calls the only network device.
const networkDevice = "eth0"

// configure sets the device up, and returns when it can carry packets.
func (i *interior) configure() error {
	if i == nil {
		return nil
	}
	ns, err := nl.CurrentNamespace()
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := awaitDevice("address", i.MAC); err != nil {
		return err
	}
	for _, key := range networkSettings {
		if err := ns.SetSysctl(key, "0"); err != nil {
			return err
		}
	}
	if err := ns.Configure(networkDevice, nl.DeviceConfig{Up: true, MTU: i.MTU, Addresses: i.Addresses}); err != nil {
		return err
	}
	if err := ns.AddDefaultRoutes(networkDevice, i.Gateways); err != nil {
		return err
	}
	return awaitDevice("operstate", "up")
}

// awaitDevice waits until a property of the device has a value. The device appears
// some milliseconds after its driver.
func awaitDevice(property, want string) error {
	file := filepath.Join("/sys/class/net", networkDevice, property)
	for deadline := time.Now().Add(networkTimeout); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(file)
		have := strings.TrimSpace(string(text))
		if err == nil && have == want {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("network device %s: %s is %q after %v, not %s", networkDevice, property, have, networkTimeout, want), err)
		}
	}
}

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
)

// NetworkDevice is what a guest calls its network device: the kernel's name for
// the first one.
const NetworkDevice = "eth0"

// networkTimeout is how long the guest waits for its network device, and for the
// device's carrier.
const networkTimeout = 20 * time.Second

// Interior is how a guest's network device is to be, see [Network].
type Interior struct {
	MAC       string
	MTU       int
	Addresses []netip.Prefix
	Gateways  []netip.Addr
}

// network sets the network device up, and returns when it can carry packets.
func (g *guest) network() error {
	config := g.orders.Network
	if config == nil {
		return nil
	}
	if g.configure == nil {
		return errors.New("this program sets no network devices up")
	}
	if err := awaitDevice("address", config.MAC); err != nil {
		return err
	}
	if err := g.configure(*config); err != nil {
		return err
	}
	return awaitDevice("operstate", "up")
}

// awaitDevice waits until a property of the device has a value. The device appears
// some milliseconds after its driver.
func awaitDevice(property, want string) error {
	file := filepath.Join("/sys/class/net", NetworkDevice, property)
	for deadline := time.Now().Add(networkTimeout); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(file)
		have := strings.TrimSpace(string(text))
		if err == nil && have == want {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("network device %s: %s is %q after %v, not %s", NetworkDevice, property, have, networkTimeout, want), err)
		}
	}
}

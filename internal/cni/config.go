// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/podlink"
)

// PluginType is the type that network configurations name, and the program's name.
const PluginType = "mustang-cni"

// LinkAuto has the plugin choose the link mode.
const LinkAuto = "auto"

// Ways in which pods reach services.
const (
	// ServicesSocket is by translation at connect(): an open connection pays nothing.
	// It is the default: for programs on a device ADD has to wait for the kernel.
	ServicesSocket = "socket"
	// ServicesTC is by translation of packets, which serves raw sockets too, and hands
	// packets to pods of the host directly.
	ServicesTC = "tc"
	// ServicesBoth is by either, whichever meets the traffic first.
	ServicesBoth = "both"
	// ServicesOff is not at all.
	ServicesOff = "off"
)

// DefaultOVSDB is the socket of Debian's Open vSwitch.
const DefaultOVSDB = "/var/run/openvswitch/db.sock"

// Config is a network configuration, as far as it is the plugin's business.
type Config struct {
	// CNIVersion is the version of the CNI spec that the result is to be of.
	CNIVersion string
	// Name is the network's.
	Name string
	// Link is the name of a link mode, or [LinkAuto].
	Link string
	// Parent is the host's device to the outside: the one that the devices of macvlan and ipvlan sit on, and by which
	// connections to host ports come in. Empty means the one of the default route.
	Parent string
	// Bridge is the name of the bridge, podlink.DefaultBridge if empty.
	Bridge string
	// OVSDB is the unix socket of the Open vSwitch's database.
	OVSDB string
	// MTU of the pods' devices in bytes; 0 means the parent's, or podlink.DefaultMTU.
	MTU int
	// Services is one of the ways above.
	Services string
	// Masquerade hides pods' addresses from what is outside of their network.
	Masquerade bool
	// HostAddresses are the host's own towards the pods, one of a family, where the gateways are other routers. In a
	// family without one the gateway is the host.
	HostAddresses []netip.Addr
	// NoDefaultRoute leaves pods without default routes.
	NoDefaultRoute bool
	// Chained leaves link and addresses to the plugins before this one.
	Chained bool
	// IPAM says where addresses come from.
	IPAM IPAM
	// DNS is passed on to the runtime.
	DNS types.DNS
	// Runtime is what the runtime asks of this attachment.
	Runtime Runtime
	// PrevResult is the result of the plugins before, or of ADD; nil if there is none.
	PrevResult json.RawMessage
	// Valid are the attachments that GC is to keep.
	Valid []types.GCAttachment

	raw []byte // for plugins that this one delegates to
}

// links are the modes that a network can have: those that need no other program.
func links() []string {
	return append([]string{LinkAuto}, linksThat(func(podlink.Mode) bool { return true })...)
}

// linksThat are those of the modes for which is holds.
func linksThat(is func(podlink.Mode) bool) (names []string) {
	for _, mode := range podlink.Modes() {
		if mode.Needs() != podlink.NeedsRelay && is(mode) {
			names = append(names, mode.Name())
		}
	}
	return names
}

// Parse reads a network configuration. Unknown keys and values that make no sense
// are errors that name the key; they have a code of the CNI spec. What could be read
// is there all the same: DEL has use for it.
func Parse(data []byte) (Config, error) {
	c := Config{Link: LinkAuto, OVSDB: DefaultOVSDB, Services: ServicesSocket, raw: data}
	o := parseObject("", data)
	if o.err != nil {
		return c, o.err
	}
	o.read("cniVersion", "a string", &c.CNIVersion)
	o.read("name", "a string", &c.Name)
	o.read("link", "a string", &c.Link)
	o.read("parent", "the name of a device", &c.Parent)
	o.read("bridge", "the name of a bridge", &c.Bridge)
	o.read("ovsdb", "the path of a socket", &c.OVSDB)
	o.read("mtu", "a number of bytes", &c.MTU)
	o.read("services", "a string", &c.Services)
	o.read("masquerade", "true or false", &c.Masquerade)
	o.read("hostAddresses", "an array of addresses", &c.HostAddresses)
	defaultRoute := true
	o.read("defaultRoute", "true or false", &defaultRoute)
	c.NoDefaultRoute = !defaultRoute
	o.read("chained", "true or false", &c.Chained)
	o.read("dns", "an object with nameservers, domain, search and options", &c.DNS)
	o.read("cni.dev/valid-attachments", "an array of attachments", &c.Valid)
	c.PrevResult, _ = o.take("prevResult")
	part(o, "ipam", &c.IPAM, parseIPAM)
	part(o, "runtimeConfig", &c.Runtime, parseRuntime)
	// What every plugin may be given: its type, what the runtime made of capabilities,
	// and what older runtimes pass.
	o.ignore("type", "capabilities", "args", "cni.dev/attachments")
	if err := o.finish(); err != nil {
		return c, err
	}
	if err := c.validate(); err != nil {
		return c, err
	}
	if err := c.keepHostAddresses(); err != nil {
		return c, err
	}
	return c, c.validateRoutes()
}

// Head is what can be read of a configuration before it is judged.
type Head struct {
	// CNIVersion is the version of the CNI spec that it asks for.
	CNIVersion string `json:"cniVersion"`
	// IPAM names the plugin that gives addresses.
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
}

// HeadOf reads what can be read: of data that is no configuration, nothing.
func HeadOf(data []byte) (h Head) {
	_ = json.Unmarshal(data, &h)
	return h
}

// Delegates reports whether verbs run another plugin, and wait for it.
func (h Head) Delegates() bool { return h.IPAM.Type != "" && h.IPAM.Type != IPAMType }

// validate judges the values together.
func (c Config) validate() error {
	ways := []string{ServicesSocket, ServicesTC, ServicesBoth, ServicesOff}
	switch {
	case !slices.Contains(links(), c.Link):
		return invalid("link: there is no link mode %q (there are: %s)", c.Link, strings.Join(links(), ", "))
	case !slices.Contains(ways, c.Services):
		return invalid("services: want one of %s, got %q", strings.Join(ways, ", "), c.Services)
	case c.MTU < 0 || c.MTU > 65535:
		return invalid("mtu: %d is not between 0 and 65535", c.MTU)
	case !strings.HasPrefix(c.OVSDB, "/"):
		return invalid("ovsdb: want an absolute path, got %q", c.OVSDB)
	}
	for key, device := range map[string]string{"parent": c.Parent, "bridge": c.Bridge} {
		if len(device) > 15 || strings.ContainsAny(device, "/: \t\n%") {
			return invalid("%s: %q is no name for a device", key, device)
		}
	}
	if c.Chained {
		return c.validateChained()
	}
	if c.IPAM.Type == "" {
		return invalid("ipam.type: missing: want %q, or the name of another IPAM plugin", IPAMType)
	}
	if c.IPAM.asks() {
		return c.validateAsking()
	}
	return nil
}

// validateChained refuses what a plugin before this one decides.
func (c Config) validateChained() error {
	switch {
	case c.IPAM.Type != "":
		return invalid("ipam: a chained plugin gives no addresses")
	case c.Link != LinkAuto:
		return invalid("link: a chained plugin makes no link, got %q", c.Link)
	case c.Masquerade:
		return invalid("masquerade: a chained plugin leaves it to the plugin that makes the link")
	case c.HostAddresses != nil:
		return invalid("hostAddresses: a chained plugin gives the host no addresses")
	case c.NoDefaultRoute:
		return invalid("defaultRoute: a chained plugin makes no routes")
	case c.Services == ServicesOff && len(c.Runtime.Ports) == 0:
		return invalid("services: a chained plugin without services does nothing")
	}
	return nil
}

// valid reports whether GC is to keep an attachment.
func (c Config) valid(o Owner) bool {
	return slices.Contains(c.Valid, types.GCAttachment{ContainerID: o.ContainerID, IfName: o.IfName})
}

// translatesPackets and translatesSockets say which programs the pods need. What
// comes to a host's port from outside is answered by packets.
func (c Config) translatesPackets() bool {
	return c.Services == ServicesTC || c.Services == ServicesBoth || len(c.Runtime.Ports) > 0
}
func (c Config) translatesSockets() bool {
	return c.Services == ServicesSocket || c.Services == ServicesBoth
}

// String names the network for messages.
func (c Config) String() string { return fmt.Sprintf("network %q", c.Name) }

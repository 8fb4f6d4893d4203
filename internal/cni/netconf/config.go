// SPDX-License-Identifier: Apache-2.0

// Package netconf parses and validates the network configuration of the CNI plugin.
//
// The keys are documented in docs/cni.md and docs/cni.schema.json. Each error carries a
// code of the CNI specification and names the key.
package netconf

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"mustang/internal/suggest"
)

// PluginType is the value of key type in network configurations, and the file name of the plugin.
const PluginType = "mustang-cni"

// LoopbackType is the plugin for the loopback device, which containerd runs for each pod: the file name of another copy
// of the plugin.
const LoopbackType = "loopback"

// FullPlugin is the file name of the plugin beside its client.
const FullPlugin = "mustang-cni-full"

// LinkAuto selects the link mode on the node. See [AutoLinks].
const LinkAuto = "auto"

// Values of key services: how pods reach services.
const (
	// ServicesSocket translates at connect(), so an established connection costs nothing. It is the default: ADD
	// attaches no program to a device, which the kernel delays.
	ServicesSocket = "socket"
	// ServicesTC translates packets. It serves raw sockets as well, and delivers
	// packets to pods of the same node directly.
	ServicesTC = "tc"
	// ServicesBoth translates at whichever of the two sees the traffic first.
	ServicesBoth = "both"
	// ServicesOff translates nothing.
	ServicesOff = "off"
)

// Services returns the values of key services.
func Services() []string { return []string{ServicesSocket, ServicesTC, ServicesBoth, ServicesOff} }

// Values of key bigTCP.
const (
	// BigTCPAuto lets IPv4 TCP packets of up to 256 KiB cross pod devices, unless the parent would lose its segmentation
	// offload by them.
	BigTCPAuto = "auto"
	// BigTCPOn lets them cross in any case.
	BigTCPOn = "on"
	// BigTCPOff leaves the kernel's limit of 64 KiB.
	BigTCPOff = "off"
)

// The range of key connections, as of objects.Sizes.
const minConnections, maxConnections = 1 << 10, 1 << 24

// DefaultOVSDB is the database socket of Debian's Open vSwitch.
const DefaultOVSDB = "/var/run/openvswitch/db.sock"

// Config is a network configuration.
type Config struct {
	// CNIVersion is the version of the CNI specification for the result, Name the name of the network.
	CNIVersion, Name string
	// Link is the name of a link mode, or [LinkAuto].
	Link string
	// Parent is the uplink of the host: macvlan and ipvlan devices are created on it, and
	// connections to host ports enter through it. Empty means the device of the default route.
	Parent string
	// Bridge is the name of the bridge; empty means podlink.DefaultBridge.
	Bridge string
	// OVSDB is the path of the Unix socket of the Open vSwitch database.
	OVSDB string
	// MTU of the pod devices in bytes; 0 means the parent's MTU, at most podlink.DefaultMTU.
	MTU int
	// Connections is the size of the connection table, if the plugin creates it; 0 for one by the machine's memory.
	Connections uint32
	// BigTCP is one of the BigTCP constants, Services one of the Services constants.
	BigTCP, Services string
	// PodInfo is what network policies may know of the pods.
	PodInfo PodInfo
	// SourceGuard drops what leaves a pod from an address that is not its own. AllowedAddresses are its own besides its
	// addresses.
	SourceGuard      bool
	AllowedAddresses []netip.Prefix
	// Masquerade translates the source address of packets that leave the pod network to an address of the host.
	Masquerade bool
	// HostAddresses are the host's own addresses in the pod network, at most one for each family. In a family that
	// has one, the gateway is another router; otherwise the gateway address is the host's.
	HostAddresses []netip.Addr
	// NoDefaultRoute omits default routes in pods.
	NoDefaultRoute bool
	// Chained leaves the link and the addresses to the previous plugins of the list.
	Chained bool
	// IPAM configures address management.
	IPAM IPAM
	// DNS is copied to the result.
	DNS types.DNS
	// Runtime holds the capability arguments of this attachment.
	Runtime Runtime
	// PrevResult is the result of the previous plugin, or of ADD; nil if absent.
	PrevResult json.RawMessage
	// Valid are the attachments that GC keeps.
	Valid []types.GCAttachment
	// Raw is the configuration as received, for delegated plugins.
	Raw []byte `json:"-"`
}

// Parse parses and validates a network configuration. Unknown keys and invalid values
// are errors of type *types.Error that name the key. On an error, Config still holds
// every value that could be parsed, so that DEL can proceed; Name is then valid or empty.
func Parse(data []byte) (Config, error) {
	c := Config{Link: LinkAuto, OVSDB: DefaultOVSDB, BigTCP: BigTCPAuto, Services: ServicesSocket,
		SourceGuard: true, Raw: data}
	o := parseObject("", data)
	if o.err != nil {
		return c, o.err
	}
	o.read("cniVersion", "a string", &c.CNIVersion)
	o.read("name", "a string", &c.Name)
	c.Name = o.networkName(c.Name)
	o.read("link", "a string", &c.Link)
	o.read("parent", "the name of a device", &c.Parent)
	o.read("bridge", "the name of a bridge", &c.Bridge)
	o.read("ovsdb", "the path of a socket", &c.OVSDB)
	o.read("mtu", "a number of bytes", &c.MTU)
	o.read("connections", "a number of connections", &c.Connections)
	o.read("bigTCP", "a string", &c.BigTCP)
	o.read("services", "a string", &c.Services)
	guard, allowed := sourceGuardOn, []string(nil)
	o.read("sourceGuard", "a string", &guard)
	o.read("allowedAddresses", "an array of addresses and prefixes", &allowed)
	o.read("masquerade", "true or false", &c.Masquerade)
	o.read("hostAddresses", "an array of addresses", &c.HostAddresses)
	defaultRoute := true
	o.read("defaultRoute", "true or false", &defaultRoute)
	c.NoDefaultRoute = !defaultRoute
	o.read("chained", "true or false", &c.Chained)
	o.read("dns", "an object with nameservers, domain, search and options", &c.DNS)
	o.read("cni.dev/valid-attachments", "an array of attachments", &c.Valid)
	c.PrevResult, _ = o.take("prevResult")
	readWith(o, "ipam", &c.IPAM, parseIPAM)
	readWith(o, "runtimeConfig", &c.Runtime, parseRuntime)
	c.PodInfo = o.readPod()
	// Keys that every plugin receives: its type, and capabilities, which the runtime evaluates.
	o.ignore("type", "capabilities", "cni.dev/attachments")
	if err := o.finish(); err != nil {
		return c, err
	}
	c.SourceGuard = guard != sourceGuardOff
	for _, word := range []struct {
		key, value string
		known      []string
	}{
		{"services", c.Services, Services()}, {"bigTCP", c.BigTCP, []string{BigTCPAuto, BigTCPOn, BigTCPOff}},
		{"sourceGuard", guard, []string{sourceGuardOn, sourceGuardOff}},
		{"policies", c.PodInfo.policies, []string{policiesAuto, policiesOn, policiesOff, PoliciesAgent}},
	} {
		if !slices.Contains(word.known, word.value) {
			return c, Invalidf("%s: want one of %s, got %q", word.key, strings.Join(word.known, ", "), word.value)
		}
	}
	for _, validate := range []func() error{
		func() error { return c.setAllowed(allowed) }, c.validate, c.validateHostAddresses,
		func() error { return c.PodInfo.validate(c.Services) }, c.validateRoutes,
	} {
		if err := validate(); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Head is the part of a configuration that is readable before validation.
type Head struct {
	// CNIVersion is the requested version of the CNI specification.
	CNIVersion string `json:"cniVersion"`
	// Name is the name of the network, Link the link mode.
	Name string `json:"name"`
	Link string `json:"link"`
	// Type is [PluginType] or [LoopbackType].
	Type string `json:"type"`
	// Policies is [PoliciesAgent], or another word.
	Policies string `json:"policies"`
	// PrevResult is the result of the previous plugin; nil if absent.
	PrevResult json.RawMessage `json:"prevResult"`
	// IPAM names the IPAM plugin.
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
}

// ParseHead parses the head of a configuration. Invalid data gives the zero value.
func ParseHead(data []byte) (h Head) {
	_ = json.Unmarshal(data, &h)
	return h
}

// Delegates reports whether the verbs run another plugin and wait for it.
func (h Head) Delegates() bool { return h.IPAM.Type != "" && h.IPAM.Type != IPAMType }

// validate checks values and their combinations.
func (c Config) validate() error {
	switch {
	case !slices.Contains(Links(), c.Link):
		return Invalidf("link: unknown link mode %q (known: %s)%s", c.Link, strings.Join(Links(), ", "),
			suggest.Text(c.Link, Links()))
	case c.MTU < 0 || c.MTU > 65535:
		return Invalidf("mtu: %d is not between 0 and 65535", c.MTU)
	case c.Connections != 0 && (c.Connections < minConnections || c.Connections > maxConnections):
		return Invalidf("connections: %d is not between %d and %d, and not 0 (by memory)", c.Connections, minConnections,
			maxConnections)
	case !strings.HasPrefix(c.OVSDB, "/"):
		return Invalidf("ovsdb: want an absolute path, got %q", c.OVSDB)
	}
	for _, device := range [][2]string{{"parent", c.Parent}, {"bridge", c.Bridge}} {
		if len(device[1]) > 15 || strings.ContainsAny(device[1], "/: \t\n%") {
			return Invalidf("%s: invalid device name %q", device[0], device[1])
		}
	}
	if c.Chained {
		return c.validateChained()
	}
	if c.IPAM.Type == "" {
		return Invalidf("ipam.type: missing: want %q, or the name of another IPAM plugin", IPAMType)
	}
	if c.IPAM.NeedsDevice() {
		return c.validateDHCP()
	}
	return nil
}

// validateChained rejects keys that configure what the previous plugins did.
func (c Config) validateChained() error {
	switch {
	case c.IPAM.Type != "":
		return Invalidf("ipam: a chained plugin assigns no addresses")
	case c.Link != LinkAuto:
		return Invalidf("link: a chained plugin creates no link, got %q", c.Link)
	case c.Masquerade:
		return Invalidf("masquerade: not supported in a chained plugin; configure it in the plugin that creates the link")
	case c.BigTCP != BigTCPAuto:
		return Invalidf("bigTCP: a chained plugin creates no device, got %q", c.BigTCP)
	case c.HostAddresses != nil:
		return Invalidf("hostAddresses: a chained plugin assigns the host no addresses")
	case c.NoDefaultRoute:
		return Invalidf("defaultRoute: a chained plugin adds no routes")
	case c.Services == ServicesOff && len(c.Runtime.Ports) == 0:
		return Invalidf("services: a chained plugin without services does nothing")
	}
	return nil
}

// Keeps reports whether GC keeps an attachment.
func (c Config) Keeps(containerID, ifName string) bool {
	return slices.Contains(c.Valid, types.GCAttachment{ContainerID: containerID, IfName: ifName})
}

// TranslatesPackets reports whether pods need the packet programs. Host ports need
// them, since replies to clients outside pass them.
func (c Config) TranslatesPackets() bool {
	return c.Services == ServicesTC || c.Services == ServicesBoth || len(c.Runtime.Ports) > 0
}

// TranslatesSockets reports whether pods need the socket programs.
func (c Config) TranslatesSockets() bool {
	return c.Services == ServicesSocket || c.Services == ServicesBoth
}

// PreviousResult decodes PrevResult. It is an error if there is none.
func (c Config) PreviousResult() (*types100.Result, error) {
	if c.PrevResult == nil {
		return nil, Invalidf("prevResult: missing")
	}
	versioned, err := create.Create(c.CNIVersion, c.PrevResult)
	if err != nil {
		return nil, Invalidf("prevResult: %v", err)
	}
	result, err := types100.NewResultFromResult(versioned)
	if err != nil {
		return nil, Invalidf("prevResult: %v", err)
	}
	return result, nil
}

// String names the network in messages.
func (c Config) String() string { return fmt.Sprintf("network %q", c.Name) }

// Values of key sourceGuard.
const (
	sourceGuardOn  = "on"
	sourceGuardOff = "off"
)

// maxAllowed is the number of allowed addresses.
const maxAllowed = 16

// setAllowed sets what pods may send from besides their own addresses.
func (c *Config) setAllowed(allowed []string) error {
	switch {
	case !c.SourceGuard && len(allowed) > 0:
		return Invalidf("allowedAddresses: without sourceGuard pods send from any address")
	case len(allowed) > maxAllowed:
		return Invalidf("allowedAddresses: %d of them, at most %d", len(allowed), maxAllowed)
	}
	for _, text := range allowed {
		prefix, err := netip.ParsePrefix(text)
		if addr, addrErr := netip.ParseAddr(text); addrErr == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		addr := prefix.Addr()
		if err != nil || prefix != prefix.Masked() || addr.Is4In6() || addr.Zone() != "" ||
			prefix.Bits() > 0 && (addr.IsMulticast() || addr.IsLoopback() || addr.IsUnspecified()) {
			return Invalidf("allowedAddresses: want an address of hosts, or a prefix of such without host bits, got %q", text)
		}
		c.AllowedAddresses = append(c.AllowedAddresses, prefix)
	}
	return nil
}

// NeedsDatapath reports whether the maps and programs of the datapath are needed.
func (c Config) NeedsDatapath() bool {
	return c.Services != ServicesOff || len(c.Runtime.Ports) > 0 || c.SourceGuard
}

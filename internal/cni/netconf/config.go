// SPDX-License-Identifier: Apache-2.0

// Package netconf parses the network configuration of the CNI plugin.
//
// docs/reference/cni.md and docs/cni.schema.json document the keys. Each error has a code of the CNI specification and
// names the key.
package netconf

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"mustang/internal/ipam"
	"mustang/internal/podlink"
	"mustang/internal/service"
)

// File names of the plugin, and values of key type.
const (
	PluginType   = "mustang-cni"
	LoopbackType = "loopback"         // a second copy, which containerd runs for the loopback device of each pod
	FullPlugin   = "mustang-cni-full" // the Go plugin, where the agent's C client is named PluginType
)

// LinkAuto selects the link mode on the node. See [AutoLinks].
const LinkAuto = "auto"

// Values of key services: how pods reach services.
const (
	ServicesSocket = "socket" // the default: at connect(), so established connections cost nothing
	ServicesTC     = "tc"     // in packets: also for raw sockets; packets to pods of the node are delivered directly
	ServicesBoth   = "both"   // in sockets and packets, wherever the traffic appears first
	ServicesOff    = "off"
)

// Services returns the values of key services.
func Services() []string { return []string{ServicesSocket, ServicesTC, ServicesBoth, ServicesOff} }

// Values of key bigTCP: whether TCP packets of up to 256 KiB (IPv6: since Linux 7.0) cross pod devices.
const (
	BigTCPAuto = "auto" // on, unless that disables the segmentation offload of the parent
	BigTCPOn   = "on"
	BigTCPOff  = "off" // the kernel's limit of 64 KiB
)

// Values of key policies: which pods are endpoints for network policies, even if services need no endpoint.
const (
	policiesAuto  = "auto" // pods that have a namespace or labels
	policiesOn    = "on"
	policiesOff   = "off"
	PoliciesAgent = "agent" // like auto, and ADD waits until the agent has the policies for the pod in force
)

// Default sockets of Open vSwitch's database in Debian, and of the DHCP plugin's daemon.
const (
	DefaultOVSDB      = "/var/run/openvswitch/db.sock"
	defaultDHCPDaemon = "/run/cni/dhcp.sock"
)

// Special values of ipam.type. Any other value is the name of an IPAM plugin, which ADD runs.
const (
	IPAMType = "mustang" // the built-in address management of package ipam
	DHCPType = "dhcp"    // the plugin of containernetworking, which requests addresses through the pod's device
)

// Config is a network configuration.
type Config struct {
	// CNIVersion is the version of the CNI specification for the result, Name the name of the network.
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Link       string `json:"link"` // a link mode, or [LinkAuto]
	// Parent is the uplink of the host, for macvlan and ipvlan devices, and for connections to host ports. Empty means the
	// device of the default route.
	Parent string `json:"parent" want:"the name of a device"`
	Bridge string `json:"bridge" want:"the name of a bridge"` // empty means podlink.DefaultBridge
	OVSDB  string `json:"ovsdb" want:"the path of a socket"`
	MTU    int    `json:"mtu" want:"a number of bytes"` // 0 means the parent's MTU, at most podlink.DefaultMTU
	// Connections is the size of the connection table, if the plugin creates it; 0: by the machine's memory.
	Connections uint32            `json:"connections" want:"a number of connections"`
	BigTCP      string            `json:"bigTCP"`
	Services    string            `json:"services"`
	Policies    string            `json:"policies"`
	Namespace   string            `json:"namespace"` // with Labels, describes the pods for network policies
	Labels      map[string]string `json:"labels" want:"an object of strings"`
	// SourceGuard drops packets of a pod from an address that is neither its own nor one of AllowedAddresses.
	SourceGuard      bool           `json:"-"`
	AllowedAddresses []netip.Prefix `json:"-"`
	// Masquerade translates the source address of packets that leave the pod network to an address of the host.
	Masquerade bool `json:"masquerade"`
	// HostAddresses are the host's own addresses in the pod network, at most one for each family, if the gateway is
	// another router. Otherwise the gateway address is the host's.
	HostAddresses  []netip.Addr `json:"hostAddresses" want:"an array of addresses"`
	NoDefaultRoute bool         `json:"-"`
	Chained        bool         `json:"chained"` // leaves the link and the addresses to the previous plugins of the list
	IPAM           IPAM         `json:"-"`
	DNS            types.DNS    `json:"dns" want:"an object with nameservers, domain, search and options"`
	Runtime        Runtime      `json:"-"`
	// PrevResult is the result of the previous plugin, or of ADD; nil if absent. GC keeps the attachments of Valid.
	PrevResult json.RawMessage      `json:"prevResult" want:"a result"`
	Valid      []types.GCAttachment `json:"cni.dev/valid-attachments" want:"an array of attachments"`
	Raw        []byte               `json:"-"` // the configuration as received, for delegated plugins
}

// IPAM configures address management.
type IPAM struct {
	Type   string          // [IPAMType], or the name of an IPAM plugin
	Daemon string          // the socket of the DHCP plugin's daemon; empty for other types
	Sets   []ipam.RangeSet // of the built-in address management: a pod gets an address from each set
	Routes []podlink.Route // additional routes of the built-in address management
}

// BuiltIn reports whether the type is [IPAMType].
func (i IPAM) BuiltIn() bool { return i.Type == IPAMType }

// NeedsDevice reports whether the pod's device must exist before the pod has addresses.
func (i IPAM) NeedsDevice() bool { return i.Type == DHCPType }

// Runtime holds the capability arguments of one attachment (key runtimeConfig, CNI's CONVENTIONS.md).
type Runtime struct {
	IPs       []netip.Addr      // requested addresses of the pod; empty for any
	MAC       net.HardwareAddr  // requested MAC address of the pod's device; nil for any
	Ports     []Port            // port mappings
	Bandwidth podlink.Bandwidth // of traffic to the pod (CNI's ingress) and from it (egress)
}

// Port maps a port of the host to a port of the pod.
type Port struct {
	HostIP                  netip.Addr // the zero value means all addresses of the host
	HostPort, ContainerPort uint16
	Protocol                service.Protocol // TCP or UDP
}

// Head has the keys of a [Config] that are readable before validation.
type Head struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Link       string          `json:"link"`
	Type       string          `json:"type"`
	Policies   string          `json:"policies"`
	PrevResult json.RawMessage `json:"prevResult"`
	IPAM       struct {
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

// TranslatesPackets reports whether pods need the packet programs: host ports do, for replies to outside clients.
func (c Config) TranslatesPackets() bool {
	return c.Services == ServicesTC || c.Services == ServicesBoth || len(c.Runtime.Ports) > 0
}

// TranslatesSockets reports whether pods need the socket programs.
func (c Config) TranslatesSockets() bool {
	return c.Services == ServicesSocket || c.Services == ServicesBoth
}

// NeedsDatapath reports whether the maps and programs of the datapath are needed.
func (c Config) NeedsDatapath() bool {
	return c.Services != ServicesOff || len(c.Runtime.Ports) > 0 || c.SourceGuard
}

// AwaitsAgent reports whether ADD waits for the agent of the node: [PoliciesAgent].
func (c Config) AwaitsAgent() bool { return c.Policies == PoliciesAgent }

// PreviousResult decodes PrevResult. It fails if there is none.
func (c Config) PreviousResult() (*types100.Result, error) {
	if c.PrevResult == nil {
		return nil, Invalidf("prevResult: missing")
	}
	var result *types100.Result
	versioned, err := create.Create(c.CNIVersion, c.PrevResult)
	if err == nil {
		result, err = types100.NewResultFromResult(versioned)
	}
	if err != nil {
		return nil, Invalidf("prevResult: %v", err)
	}
	return result, nil
}

// String names the network in messages.
func (c Config) String() string { return fmt.Sprintf("network %q", c.Name) }

// Invalidf returns an error with the code of an invalid network configuration. The text begins with the key.
func Invalidf(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(format, args...), "")
}

// SPDX-License-Identifier: Apache-2.0

// Package advise reads what a Kubernetes cluster's network is, and predicts what another network would give.
package advise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is an object of the API server.
type Object = unstructured.Unstructured

// Kind is a kind of objects, or with a name one of them.
type Kind struct {
	schema.GroupVersionResource
	Namespace, Name string
}

// Reader calls do with each object of a kind. The error is the API server's: not found, forbidden.
type Reader func(ctx context.Context, kind Kind, do func(Object)) error

// Cluster is a cluster and its network, as the API server shows them.
type Cluster struct {
	Nodes int `json:"nodes"`
	// Network is the name of the network, such as flannel; empty if it is unknown.
	Network string `json:"network,omitempty"`
	// Overlay is "vxlan" or "none", or a tunnel that labs lack; empty if it is unknown.
	Overlay string `json:"overlay,omitempty"`
	// Proxy is the mode of kube-proxy: iptables, nftables, ipvs, or none without kube-proxy; empty if it is unknown.
	Proxy string `json:"proxy,omitempty"`
	// Ports are the ports of all Services with a cluster IP, and Endpoints the addresses behind them.
	Ports     int `json:"service_ports"`
	Endpoints int `json:"endpoints"`
	// Unsupported are features in use that Mustang lacks, and Unread the kinds that could not be read, with the reason.
	Unsupported []Feature `json:"unsupported"`
	Unread      []string  `json:"unread,omitempty"`

	link      string // of the labs; empty if they have none
	uncounted bool   // Services could not be read
}

// Feature is one that a cluster uses, with the objects that do.
type Feature struct {
	Name    string   `json:"name"`
	Objects []string `json:"objects,omitempty"` // their names, or namespaces and names
}

// network is a network that is known by the names of its DaemonSets, or by annotations of nodes.
type network struct {
	word, name, annotation string
	sets                   string // names of DaemonSets, with spaces between them
	link                   string // the link of labs that resembles its pods' links; empty: none does
	overlay                string // if it has only one
}

// networks are the known networks. A word begins a part of the name of a device: cilium in cilium_host.
var networks = []network{
	{"canal", "Canal", "", "canal", "veth", "vxlan"},
	{"flannel", "flannel", "flannel.alpha.coreos.com/", "kube-flannel-ds kube-flannel", "bridge", ""},
	{"cali", "Calico", "projectcalico.org/", "calico-node", "veth", ""},
	{"cilium", "Cilium", "", "cilium", "", ""},
	{"kube-router", "kube-router", "kube-router.io/", "kube-router", "bridge", ""},
	{"kindnet", "kindnet", "", "kindnet", "veth", "none"},
	{"aws-node", "Amazon VPC CNI", "", "aws-node", "veth", "none"},
	{"antrea", "Antrea", "", "antrea-agent", "", ""},
	{"ovn", "OVN", "", "ovnkube-node ovs-ovn kube-ovn-cni", "", ""},
	{"weave", "Weave Net", "", "weave-net", "bridge", ""},
	{"mustang", Mustang, "mustang/", "mustang", "", ""},
}

// Mustang is the name of the network that this program is.
const Mustang = "Mustang"

// IsOther reports whether the name of a DaemonSet or a device is one of another network than Mustang.
func IsOther(name string) bool {
	return slices.ContainsFunc(networks, func(n network) bool { return n.name != Mustang && n.has(name) }) ||
		strings.HasPrefix(name, "cni0") || strings.HasPrefix(name, "kube-bridge")
}

// has reports whether a name has the word at the beginning of a part: kube-flannel-ds, not autoscaling for cali.
func (n network) has(name string) bool {
	parts := strings.FieldsFunc(name, func(c rune) bool { return strings.ContainsRune("-._", c) })
	return slices.ContainsFunc(parts, func(part string) bool { return strings.HasPrefix(part, n.word) }) ||
		strings.Contains(n.word, "-") && strings.Contains(name, n.word)
}

// Read reads a cluster. It fails without the right to list nodes. Other kinds that it cannot read are in Unread.
func Read(ctx context.Context, read Reader) (Cluster, error) {
	r := reading{ctx: ctx, read: read, known: -1, Cluster: Cluster{Unsupported: []Feature{}}}
	if err := read(ctx, kindOf("", "v1", "nodes"), r.node); err != nil {
		return r.Cluster, fmt.Errorf("list nodes: %w", err)
	}
	r.each(kindOf("apps", "v1", "daemonsets"), r.daemonSet)
	for _, name := range []string{"kube-proxy", "cilium-config"} {
		kind := kindOf("", "v1", "configmaps")
		kind.Namespace, kind.Name = "kube-system", name
		r.each(kind, r.configMap)
	}
	r.each(kindOf(calico, "v1", "ippools"), r.pool)
	if r.Proxy == "" && r.proxied {
		r.Proxy = "iptables" // kube-proxy's default
	}
	if r.known >= 0 {
		n := networks[r.known]
		r.Network, r.link, r.Overlay = n.name, n.link, cmp.Or(r.Overlay, n.overlay)
	}
	if r.mixed {
		r.Overlay = ""
	}
	r.unsupportedNodes()
	r.features()
	r.services()
	r.policies()
	return r.Cluster, ctx.Err()
}

func kindOf(group, version, resource string) Kind {
	return Kind{GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: resource}}
}

const calico = "crd.projectcalico.org"

// reading collects what is read.
type reading struct {
	Cluster
	ctx                        context.Context
	read                       Reader
	known                      int    // an index of networks, or -1
	proxied                    bool   // kube-proxy's settings were read
	mixed                      bool   // nodes are joined in several ways
	first                      string // node
	old, windows, withoutRange []string
}

// each calls do with each object of a kind, in the first of the versions that the cluster serves.
func (r *reading) each(kind Kind, do func(Object), older ...string) {
	err := r.read(r.ctx, kind, do)
	for _, version := range older {
		if !apierrors.IsNotFound(err) {
			break
		}
		kind.Version = version
		err = r.read(r.ctx, kind, do)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		reason := strings.ToLower(string(apierrors.ReasonForError(err)))
		r.Unread = append(r.Unread, kind.GroupResource().String()+": "+cmp.Or(reason, err.Error()))
	}
}

func (r *reading) node(o Object) {
	r.Nodes++
	if r.first == "" {
		r.first = o.GetName()
	}
	if system, _, _ := unstructured.NestedString(o.Object, "status", "nodeInfo", "operatingSystem"); system == "windows" {
		r.windows = append(r.windows, o.GetName())
		return
	}
	kernel, _, _ := unstructured.NestedString(o.Object, "status", "nodeInfo", "kernelVersion")
	if isOld(kernel) {
		r.old = append(r.old, o.GetName()+" ("+kernel+")")
	}
	if ranges, _, _ := unstructured.NestedSlice(o.Object, "spec", "podCIDRs"); len(ranges) == 0 {
		r.withoutRange = append(r.withoutRange, o.GetName())
	}
	for key, value := range o.GetAnnotations() {
		for i, n := range networks {
			if n.annotation != "" && strings.HasPrefix(key, n.annotation) {
				r.know(i)
			}
		}
		if key == "flannel.alpha.coreos.com/backend-type" {
			r.joinedBy(flannelOverlay(value))
		}
	}
}

// joinedBy notes what joins some nodes.
func (r *reading) joinedBy(overlay string) {
	r.mixed = r.mixed || r.Overlay != "" && r.Overlay != overlay
	r.Overlay = overlay
}

// know notes a network. Of two, the first in the list counts: a chained Mustang leaves the network to the other one.
func (r *reading) know(index int) {
	if r.known < 0 || index < r.known {
		r.known = index
	}
}

func flannelOverlay(backend string) string {
	switch backend {
	case "host-gw", "alloc":
		return "none"
	}
	return backend
}

// isOld reports whether a kernel is older than 6.6. An unreadable version is not.
func isOld(kernel string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(kernel, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major < 6 || major == 6 && minor < 6
}

func (r *reading) daemonSet(o Object) {
	for i, n := range networks {
		if slices.Contains(strings.Fields(n.sets), o.GetName()) {
			r.know(i)
		}
	}
}

// configMap reads the settings of kube-proxy and of networks.
func (r *reading) configMap(o Object) {
	data, _, _ := unstructured.NestedStringMap(o.Object, "data")
	switch o.GetName() {
	case "kube-proxy":
		settings, ok := data["config.conf"]
		r.proxied = ok
		for line := range strings.Lines(settings) {
			if mode, ok := strings.CutPrefix(strings.TrimSpace(line), "mode:"); ok {
				r.Proxy = strings.Trim(strings.TrimSpace(mode), `"'`)
			}
		}
	case "cilium-config":
		r.cilium(data)
	}
}

// cilium reads the settings of Cilium. Versions before 1.14 have other names for them.
func (r *reading) cilium(data map[string]string) {
	switch {
	case data["routing-mode"] == "native", data["tunnel"] == "disabled":
		r.Overlay = "none"
	case data["tunnel-protocol"] != "":
		r.Overlay = data["tunnel-protocol"]
	default:
		r.Overlay = "vxlan"
	}
	if replaces := data["kube-proxy-replacement"]; replaces == "true" || replaces == "strict" {
		r.Proxy = "none"
	}
	for _, setting := range [][2]string{
		{"enable-hubble", "flow history (Hubble): mustang monitor shows connections only while it runs"},
		{"enable-ipsec", "IPsec between nodes: Mustang has WireGuard, with --encrypt=on"},
		{"enable-wireguard", wireGuard}, {"enable-host-firewall", "policies for nodes (host firewall)"},
	} {
		if data[setting[0]] == "true" {
			r.unsupported(setting[1])
		}
	}
}

const wireGuard = "WireGuard between nodes: set --encrypt=on, else packets are plain"

// pool reads how Calico joins nodes.
func (r *reading) pool(o Object) {
	cidr, _, _ := unstructured.NestedString(o.Object, "spec", "cidr")
	if off, _, _ := unstructured.NestedBool(o.Object, "spec", "disabled"); off || strings.Contains(cidr, ":") {
		return // IPv4 is measured
	}
	ipip, _, _ := unstructured.NestedString(o.Object, "spec", "ipipMode")
	vxlan, _, _ := unstructured.NestedString(o.Object, "spec", "vxlanMode")
	switch never := func(mode string) bool { return mode == "" || mode == "Never" }; {
	case vxlan == "Always":
		r.joinedBy("vxlan")
	case ipip == "Always":
		r.joinedBy("ipip")
	case never(vxlan) && never(ipip):
		r.joinedBy("none")
	default: // CrossSubnet depends on where the nodes are
		r.mixed = true
	}
}

// unsupported notes a feature, with objects.
func (r *reading) unsupported(feature string, objects ...string) {
	r.Unsupported = append(r.Unsupported, Feature{feature, objects})
}

// Choose sets what the API server does not show, or replaces what it shows; empty words do neither. Its error names the
// missing flags.
func (c *Cluster) Choose(link, proxy, overlay string) error {
	if c.Network == Mustang {
		return errors.New("the cluster's network is Mustang: measure it with mustang bench cluster")
	}
	c.Proxy, c.Overlay = cmp.Or(proxy, c.Proxy), cmp.Or(overlay, c.Overlay)
	if c.Network == "" {
		c.link = link
	}
	var missing []string
	if c.link == "" && c.Network == "" {
		missing = append(missing, "--link bridge or veth: the pods' links")
	}
	if c.Proxy == "" {
		missing = append(missing, "--proxy iptables, nftables, ipvs or none: the mode of kube-proxy")
	}
	if c.Overlay == "" {
		missing = append(missing, "--overlay vxlan or none: what joins the nodes")
	}
	if len(missing) > 0 {
		return fmt.Errorf("the API server does not show what the network is: add %s", strings.Join(missing, "; "))
	}
	return nil
}

// Model is the part of a cluster that labs build again.
type Model struct {
	Link     string `json:"link"`
	Proxy    string `json:"proxy"`
	Overlay  string `json:"overlay"`
	Services int    `json:"services"` // ports of Services
}

// mostServices limits the rules of a lab: with 10,000, labs took 303 s of their 60.
const mostServices = 1000

// Model returns what labs build, or why they cannot.
func (c Cluster) Model() (Model, error) {
	m := Model{c.link, c.Proxy, c.Overlay, min(c.Ports, mostServices)}
	switch {
	case c.uncounted:
		return m, errors.New("labs need the number of Services, which cannot be read")
	case m.Link == "":
		return m, fmt.Errorf("labs lack a path like the one of %s", c.Network)
	case m.Proxy != "iptables" && m.Proxy != "nftables":
		return m, fmt.Errorf("labs lack the path of kube-proxy's mode %s", m.Proxy)
	case m.Overlay != "vxlan" && m.Overlay != "none":
		return m, fmt.Errorf("labs lack the tunnel %s", m.Overlay)
	}
	return m, nil
}

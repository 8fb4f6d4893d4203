// SPDX-License-Identifier: Apache-2.0

// Package advise reads what a Kubernetes cluster's network is, and predicts what another network would give.
package advise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
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

	link string // of the labs, or other; empty if it is unknown
}

// Feature is one that a cluster uses, with the objects that do.
type Feature struct {
	Name    string   `json:"name"`
	Objects []string `json:"objects,omitempty"` // their names, or namespaces and names
}

// network is a network that is known by the names of its DaemonSets.
type network struct {
	name    string
	sets    string // names of DaemonSets, with spaces between them
	link    string // the link of labs that resembles its pods' links, or other
	overlay string // if it has only one
}

// other is a link that labs lack.
const other = "other"

// networks are the known networks.
var networks = []network{
	{"flannel", "kube-flannel-ds kube-flannel", "bridge", ""},
	{"Canal", "canal", "veth", ""},
	{"Calico", "calico-node", "veth", ""},
	{"Cilium", "cilium", other, ""},
	{"kube-router", "kube-router", "bridge", ""},
	{"kindnet", "kindnet", "veth", "none"},
	{"Amazon VPC CNI", "aws-node", "veth", "none"},
	{Mustang, "mustang", other, ""},
}

// Mustang is the name of the network that this program is.
const Mustang = "Mustang"

// others matches names with a part that begins with the word of a network: kube-flannel-ds and cilium_host, not
// autoscaling for cali.
var others = regexp.MustCompile(
	`(^|[-._])(aws-node|antrea|cali|canal|cilium|flannel|kindnet|kube-router|ovn|weave)|^cni0|^kube-bridge`)

// IsOther reports whether the name of a DaemonSet or a device is one of another network than Mustang.
func IsOther(name string) bool { return others.MatchString(name) }

// Read reads a cluster. It fails without the right to list nodes. Other kinds that it cannot read are in Unread.
func Read(ctx context.Context, read Reader) (Cluster, error) {
	r := reading{ctx: ctx, read: read, known: len(networks), Cluster: Cluster{Unsupported: []Feature{}}}
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
	if r.flannel && r.known >= len(networks)-1 {
		r.known = 0 // flannel without a DaemonSet, as in k3s, or below a chained Mustang
	}
	if r.Overlay == mixed {
		r.Overlay = ""
	}
	if r.known < len(networks) {
		n := networks[r.known]
		r.Network, r.link, r.Overlay = n.name, n.link, cmp.Or(n.overlay, r.Overlay)
	}
	if r.Network == "flannel" && r.Overlay == "wireguard" {
		r.unsupported(wireGuard)
	}
	r.features()
	r.services()
	r.policies()
	return r.Cluster, ctx.Err()
}

func kindOf(group, version, resource string) Kind {
	return Kind{GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: resource}}
}

const (
	calico = "crd.projectcalico.org"
	mixed  = "mixed" // the overlay of nodes that are joined in several ways
)

// reading collects what is read.
type reading struct {
	Cluster
	ctx     context.Context
	read    Reader
	known   int    // an index of networks, or their number
	flannel bool   // nodes have its annotation, which stays if another network replaces it
	first   string // node
}

// each calls do with each object of a kind, in the first of its versions that the cluster serves.
func (r *reading) each(kind Kind, do func(Object)) {
	var err error
	for _, kind.Version = range strings.Fields(kind.Version) {
		if err = r.read(r.ctx, kind, do); !apierrors.IsNotFound(err) {
			break
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		reason := strings.ToLower(string(apierrors.ReasonForError(err)))
		r.Unread = append(r.Unread, kind.GroupResource().String()+": "+cmp.Or(reason, err.Error()))
	}
}

func (r *reading) node(o Object) {
	r.Nodes++
	r.first = cmp.Or(r.first, o.GetName())
	if system, _, _ := unstructured.NestedString(o.Object, "status", "nodeInfo", "operatingSystem"); system == "windows" {
		r.unsupported("nodes with Windows: refused", o.GetName())
		return
	}
	kernel, _, _ := unstructured.NestedString(o.Object, "status", "nodeInfo", "kernelVersion")
	if isOld(kernel) {
		r.unsupported("nodes with a kernel older than 6.6: refused", o.GetName()+" ("+kernel+")")
	}
	if ranges, _, _ := unstructured.NestedSlice(o.Object, "spec", "podCIDRs"); len(ranges) == 0 {
		r.unsupported("nodes without spec.podCIDRs: Mustang needs the controller manager's --allocate-node-cidrs",
			o.GetName())
	}
	switch backend, ok := o.GetAnnotations()["flannel.alpha.coreos.com/backend-type"]; {
	case backend == "host-gw", backend == "alloc":
		r.joinedBy("none")
	case ok:
		r.joinedBy(backend)
	default:
		return
	}
	r.flannel = true
}

// joinedBy notes what joins some nodes.
func (r *reading) joinedBy(overlay string) {
	if r.Overlay != "" && r.Overlay != overlay {
		overlay = mixed
	}
	r.Overlay = overlay
}

// isOld reports whether a kernel is older than 6.6. An unreadable version is not.
func isOld(kernel string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(kernel, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major < 6 || major == 6 && minor < 6
}

// ofNetworks matches namespaces that networks are installed in. Tenants may have DaemonSets of any name.
var ofNetworks = regexp.MustCompile(`^(kube-.*|cilium|calico-system)$`)

// daemonSet notes a network. Of two, the first in the list counts: a chained Mustang is behind the other network.
func (r *reading) daemonSet(o Object) {
	if !ofNetworks.MatchString(o.GetNamespace()) {
		return
	}
	for i, n := range networks {
		if slices.Contains(strings.Fields(n.sets), o.GetName()) {
			r.known = min(r.known, i)
		}
	}
}

// configMap reads the settings of kube-proxy and of Cilium.
func (r *reading) configMap(o Object) {
	data, _, _ := unstructured.NestedStringMap(o.Object, "data")
	if o.GetName() == "cilium-config" {
		r.cilium(data)
		return
	}
	var settings struct{ Mode string }
	if text, ok := data["config.conf"]; ok && yaml.Unmarshal([]byte(text), &settings) == nil {
		r.Proxy = cmp.Or(settings.Mode, "iptables") // kube-proxy's default
	}
}

// cilium reads the settings of Cilium.
func (r *reading) cilium(data map[string]string) {
	r.Overlay = cmp.Or(data["tunnel-protocol"], "vxlan")
	if data["routing-mode"] == "native" {
		r.Overlay = "none"
	}
	if data["kube-proxy-replacement"] == "true" {
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
		r.joinedBy(mixed)
	}
}

// unsupported notes a feature, with objects.
func (r *reading) unsupported(feature string, objects ...string) {
	i := slices.IndexFunc(r.Unsupported, func(f Feature) bool { return f.Name == feature })
	if i < 0 {
		i, r.Unsupported = len(r.Unsupported), append(r.Unsupported, Feature{Name: feature})
	}
	r.Unsupported[i].Objects = append(r.Unsupported[i].Objects, objects...)
}

// Choose sets what the API server does not show, or replaces what it shows; "auto" does neither. Its error names the
// missing flags. If labs lack the link, no flag is needed.
func (c *Cluster) Choose(link, proxy, overlay string) error {
	if c.Network == Mustang {
		return errors.New("the cluster's network is Mustang: measure it with mustang bench cluster")
	}
	if c.link != "" && link != other {
		link = c.link
	}
	var missing []string
	for _, flag := range []struct {
		to         *string
		word, text string
	}{
		{&c.link, link, "--link bridge, veth or other: the pods' links"},
		{&c.Proxy, proxy, "--proxy iptables, nftables, ipvs or none: the mode of kube-proxy"},
		{&c.Overlay, overlay, "--overlay vxlan or none: what joins the nodes"},
	} {
		if flag.word != "auto" {
			*flag.to = flag.word
		}
		if *flag.to == "" {
			missing = append(missing, flag.text)
		}
	}
	if len(missing) > 0 && c.link != other {
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
	case slices.ContainsFunc(c.Unread, func(kind string) bool { return strings.HasPrefix(kind, "services: ") }):
		return m, errors.New("labs need the number of Services, which cannot be read")
	case m.Link == other:
		return m, fmt.Errorf("labs lack a path like the one of %s", cmp.Or(c.Network, "this network"))
	case m.Proxy != "iptables" && m.Proxy != "nftables":
		return m, fmt.Errorf("labs lack the path of kube-proxy's mode %s", m.Proxy)
	case m.Overlay != "vxlan" && m.Overlay != "none":
		return m, fmt.Errorf("labs lack the tunnel %s", m.Overlay)
	}
	return m, nil
}

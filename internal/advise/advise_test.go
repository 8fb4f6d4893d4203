// SPDX-License-Identifier: Apache-2.0

package advise_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"mustang/internal/advise"
	"mustang/internal/result"
	"mustang/internal/testkit"
)

// server has objects in JSON by the name of their kind, "nodes" or "ciliumnetworkpolicies.cilium.io". Other kinds are
// unknown, except for forbidden ones.
type server struct {
	objects   map[string][]string
	forbidden string
}

func (s server) read(_ context.Context, kind advise.Kind, do func(advise.Object)) error {
	name := kind.GroupResource().String()
	if name == s.forbidden {
		return apierrors.NewForbidden(kind.GroupResource(), kind.Name, nil)
	}
	for _, text := range s.objects[name] {
		var o advise.Object
		if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
			return err
		}
		if kind.Name == "" || o.GetName() == kind.Name && o.GetNamespace() == kind.Namespace {
			do(o)
		}
	}
	if s.objects[name] == nil {
		return apierrors.NewNotFound(kind.GroupResource(), kind.Name)
	}
	return nil
}

func node(name, more string) string {
	return fmt.Sprintf(`{"kind": "Node", "apiVersion": "v1", "metadata": {"name": %q%s}, "spec": {"podCIDRs": ["10.0.0.0/24"]},
		"status": {"nodeInfo": {"kernelVersion": "6.12.0-1", "operatingSystem": "linux"}}}`, name, more)
}

func object(kind, namespace, name, more string) string {
	version, kind, _ := strings.Cut(kind, " ")
	return fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "metadata": {"namespace": %q, "name": %q}%s}`, version, kind,
		namespace, name, more)
}

// TestNetworksAreFound reads what API servers show of networks, and what labs build of it.
func TestNetworksAreFound(t *testing.T) {
	configMap := func(name, data string) string {
		return object("v1 ConfigMap", "kube-system", name, `, "data": `+data)
	}
	mode := func(mode string) string {
		return configMap("kube-proxy", fmt.Sprintf(`{"config.conf": %q}`, "kind: KubeProxyConfiguration\nmode: "+mode+"\n"))
	}
	pool := func(vxlan, ipip string) string {
		return object("crd.projectcalico.org/v1 IPPool", "", "p", fmt.Sprintf(`, "spec": {"vxlanMode": %q, "ipipMode": %q}`,
			vxlan, ipip))
	}
	const missing = "--link bridge, veth or other: the pods' links; --proxy"
	for name, c := range map[string]struct {
		set, backend      string // the name of a DaemonSet, and flannel's annotation
		configMaps, pools []string
		flags             string // link, proxy and overlay
		want              string // of the network, or of an error
	}{
		"flannel":          {"", "vxlan", []string{mode(`"nftables" # mode`)}, nil, "", "flannel vxlan nftables: bridge"},
		"host-gw":          {"", "host-gw", []string{mode(`iptables`)}, nil, "", "flannel none iptables: bridge"},
		"empty mode":       {"", "vxlan", []string{mode(`""`)}, nil, "", "flannel vxlan iptables: bridge"},
		"no ConfigMap":     {"kube-proxy", "vxlan", nil, nil, "", "add --proxy iptables"},
		"flag of the mode": {"", "vxlan", nil, nil, "auto nftables auto", "flannel vxlan nftables: bridge"},
		"mode of no lab": {"", "vxlan", nil, nil, "auto ipvs auto",
			"flannel vxlan ipvs: labs lack the path of kube-proxy's mode ipvs"},
		"flannel before kindnet": {"kindnet", "vxlan", []string{mode("nftables")}, nil, "", "kindnet none nftables: veth"},
		"Calico": {"calico-node", "", []string{mode("iptables")}, []string{pool("Always", "Never")}, "",
			"Calico vxlan iptables: veth"},
		"IPIP": {"calico-node", "", []string{mode("iptables")}, []string{pool("Never", "Always"),
			strings.Replace(pool("Never", "Never"), `"spec": {`, `"spec": {"cidr": "fd00::/64", `, 1)}, "",
			"Calico ipip iptables: labs lack the tunnel ipip"},
		"between subnets": {"calico-node", "", []string{mode("iptables")}, []string{pool("CrossSubnet", "Never")}, "",
			"add --overlay vxlan or none"},
		"two kinds of pools": {"calico-node", "", []string{mode("iptables")},
			[]string{pool("Never", "Always"), pool("Never", "Never")}, "", "add --overlay vxlan or none"},
		"a name that begins alike": {"california-metrics", "", nil, nil, "", missing},
		"a tenant's":               {"shop/mustang", "", nil, nil, "", missing},
		"other, by flag":           {"", "vxlan", []string{mode("iptables")}, nil, "other auto auto", "flannel vxlan iptables: labs lack a path like the one of flannel"},
		"Cilium": {"cilium", "", []string{configMap("cilium-config",
			`{"routing-mode": "native", "kube-proxy-replacement": "true"}`)}, nil, "veth auto auto",
			"Cilium none none: labs lack a path like the one of Cilium"},
		"unknown":  {"", "", nil, nil, "", missing},
		"other":    {"", "", nil, nil, "other auto auto", "  : labs lack a path like the one of this network"},
		"by flags": {"", "", nil, nil, "veth nftables none", " none nftables: veth"},
		"Mustang":  {"mustang", "", nil, nil, "", "mustang bench cluster"},
		"chained Mustang": {"mustang", "vxlan", nil, nil, "auto none auto",
			"flannel vxlan none: labs lack the path of kube-proxy's mode none"},
	} {
		t.Run(name, func(t *testing.T) {
			more := ""
			if c.backend != "" {
				more = `, "annotations": {"flannel.alpha.coreos.com/backend-type": "` + c.backend + `"}`
			}
			namespace, name, tenant := strings.Cut(c.set, "/")
			if !tenant {
				namespace, name = "kube-system", c.set
			}
			found, err := advise.Read(t.Context(), server{objects: map[string][]string{
				"nodes": {node("a", more)}, "daemonsets.apps": {object("apps/v1 DaemonSet", namespace, name, "")},
				"configmaps": c.configMaps, "ippools.crd.projectcalico.org": c.pools,
			}}.read)
			testkit.Succeed(t, err)
			flags := strings.Fields(cmp.Or(c.flags, "auto auto auto"))
			if err = found.Choose(flags[0], flags[1], flags[2]); err != nil {
				testkit.Check(t, strings.Contains(err.Error(), c.want), "error %v, want %q", err, c.want)
				return
			}
			got := found.Network + " " + found.Overlay + " " + found.Proxy + ": "
			if m, err := found.Model(); err == nil {
				got += m.Link
			} else {
				got += err.Error()
			}
			testkit.Check(t, got == c.want, "network %q, want %q", got, c.want)
		})
	}
}

// TestOthersAreFound matches names of DaemonSets and devices with the words of networks.
func TestOthersAreFound(t *testing.T) {
	for name, want := range map[string]bool{"kube-flannel-ds": true, "cilium_host": true, "cali1234": true,
		"cni0": true, "antrea-gw0": true, "vxlan.calico": true, "kube-router": true, "autoscaling": false, "mustang": false, "eth0": false} {
		got := advise.IsOther(name)
		testkit.Check(t, got == want, "%s is of another network: %t, want %t", name, got, want)
	}
}

// TestFeaturesAreNamed reads a cluster whose objects lose their effect, and kinds that may not be read.
func TestFeaturesAreNamed(t *testing.T) {
	policy := func(name, spec string) string {
		return object("networking.k8s.io/v1 NetworkPolicy", "shop", name, `, "spec": `+spec)
	}
	service := func(name, spec string) string { return object("v1 Service", "shop", name, `, "spec": `+spec) }
	all := server{forbidden: "bgppeers.crd.projectcalico.org", objects: map[string][]string{
		"nodes": {
			node("a", ""), strings.Replace(node("old", ""), "6.12.0-1", "5.15.0-91-generic", 1),
			strings.Replace(node("w", ""), `"linux"`, `"windows"`, 1), strings.Replace(node("b", ""), `"10.0.0.0/24"`, "", 1),
		},
		"ciliumnetworkpolicies.cilium.io": {
			object("cilium.io/v2 CiliumNetworkPolicy", "shop", "http", ""), object("cilium.io/v2 CiliumNetworkPolicy", "shop",
				"dns", ""),
		},
		"networkpolicies.networking.k8s.io": {policy("fine", `{"podSelector": {}}`), policy("odd", `{"podSelector": {}, "rate": 1}`)},
		"ingressclasses.networking.k8s.io": {object("networking.k8s.io/v1 IngressClass", "", "c",
			`, "spec": {"controller": "cilium.io/ingress-controller"}`), object("networking.k8s.io/v1 IngressClass", "", "nginx",
			`, "spec": {"controller": "k8s.io/ingress-nginx"}`)},
		"services": {
			service("web", `{"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]}`),
			service("loop", `{"clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.8"], "externalIPs": ["127.0.0.1"], "ports": [{"port": 80}]}`),
			service("headless", `{"clusterIP": "None", "ports": [{"port": 80}]}`),
		},
		"endpointslices.discovery.k8s.io": {object("discovery.k8s.io/v1 EndpointSlice", "shop", "web-1",
			`, "addressType": "IPv4", "ports": [{"port": 80}], "endpoints": [{"addresses": ["10.0.0.2"]}, {"addresses": ["10.0.0.3"]}]`)},
	}}
	found, err := advise.Read(t.Context(), all.read)
	testkit.Succeed(t, err)
	var got []string
	for _, b := range found.Unsupported {
		got = append(got, b.Name+": "+strings.Join(b.Objects, ", "))
	}
	for _, want := range []string{
		"older than 6.6: refused: old (5.15.0-91-generic)", "Windows: refused: w", "without spec.podCIDRs",
		"ciliumnetworkpolicies.cilium.io: policies of this kind: not enforced: shop/http, shop/dns",
		"ingressclasses.networking.k8s.io: Cilium runs the controller of this class: install another one: c", "policies that Mustang cannot read",
		"does not serve in full: shop/loop (",
	} {
		testkit.Check(t, slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, want) }),
			"breaks lack %q: %q", want, got)
	}
	testkit.Check(t, len(got) == 7, "%d breaks, want 7: %q", len(got), got)
	testkit.Check(t, found.Ports == 3 && found.Endpoints == 2 && found.Nodes == 4, "cluster %+v", found)
	if want := []string{"bgppeers.crd.projectcalico.org: forbidden"}; !slices.Equal(found.Unread, want) {
		t.Errorf("unread %q, want %q", found.Unread, want)
	}
	_, err = advise.Read(t.Context(), server{forbidden: "nodes"}.read)
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "list nodes"), "error %v without nodes", err)
}

func row(id, workload string, median, by float64) result.Row {
	return result.Row{ID: id, Workload: workload, Status: result.StatusOK, Unit: result.UnitTransactions, Median: median,
		Target: result.TargetPodIP, CI95: &[2]float64{median / by, median * by}}
}

func ratio(numerator, denominator string, value, by float64) result.Comparison {
	return result.Comparison{Numerator: numerator, Denominator: denominator, Workload: result.WorkloadTCPRR, Ratio: value,
		CI95: &[2]float64{value / by, value * by}}
}

// TestPredictions multiplies figures with ratios of labs, and their intervals on logarithms.
func TestPredictions(t *testing.T) {
	const rr = result.WorkloadTCPRR
	host := row("host/same-node", rr, 1, 1.1)
	host.Target = result.TargetHostIP
	cluster := result.File{Rows: []result.Row{
		host, row("pod-ip/same-node", rr, 1000, math.Exp(0.03)), row("cluster-ip/same-node", rr, 900, math.Exp(0.03)),
		row("cluster-ip/two-nodes", rr, 500, math.Exp(0.03)), row("pod-ip/two-nodes", rr, 600, math.Exp(0.03)),
	}}
	cluster.Rows[2].Target, cluster.Rows[3].Target = result.TargetClusterIP, result.TargetClusterIP
	cluster.Run.Comparisons = []result.Comparison{ratio("cluster-ip/two-nodes", "pod-ip/two-nodes", 0.8, math.Exp(0.04))}
	labs := result.File{Rows: []result.Row{{}}}
	labs.Run.Comparisons = []result.Comparison{
		ratio("mustang/pod-ip/same-node", "now/pod-ip/same-node", 1.5, math.Exp(0.04)),
		ratio("mustang/cluster-ip/same-node", "now/cluster-ip/same-node", 2, math.Exp(0.01)),
		ratio("mustang/pod-ip/same-node", "now/cluster-ip/same-node", 1.5, math.Exp(0.01)),
		{Numerator: "mustang/pod-ip/two-nodes", Denominator: "now/pod-ip/two-nodes", Workload: rr, Ratio: 3},
	}
	near := func(what string, got advise.Figure, value, low, high float64) {
		t.Helper()
		same := func(a, b float64) bool { return math.Abs(a/b-1) < 1e-9 }
		testkit.Check(t, same(got.Value, value) && got.CI95 != nil && same(got.CI95[0], low) && same(got.CI95[1], high),
			"%s: %+v, want %g (%g to %g)", what, got, value, low, high)
	}
	predict := func(labs result.File) []advise.Row {
		var a advise.Advice
		a.Predict(cluster, labs)
		return a.Rows
	}
	rows := predict(labs)
	testkit.Require(t, len(rows) == 4, "rows %+v", rows)
	pod := rows[0].Predicted[advise.WholeNetwork]
	near("pod IP's ratio", pod.Ratio, 1.5, 1.5*math.Exp(-0.04), 1.5*math.Exp(0.04))
	near("pod IP", pod.Figure, 1500, 1500*math.Exp(-0.05), 1500*math.Exp(0.05)) // 3 and 4 make 5
	low, high := 1.5*math.Exp(-0.01), 2*math.Exp(0.01)                          // from per packet to at sockets
	near("cluster IP's ratio", rows[1].Predicted[advise.WholeNetwork].Ratio, math.Sqrt(low*high), low, high)
	near("in place of kube-proxy, one node", rows[1].Predicted[advise.ProxyOnly].Ratio, math.Sqrt(low*high), low, high)
	near("in place of kube-proxy, two nodes", rows[2].Predicted[advise.ProxyOnly].Ratio, 1.25, 1.25*math.Exp(-0.04),
		1.25*math.Exp(0.04))
	testkit.Check(t, len(rows[3].Predicted) == 0, "predictions without an interval: %+v", rows[3].Predicted)
	cluster.Rows[1].CI95 = nil
	testkit.Check(t, len(predict(labs)[0].Predicted) == 0, "predictions without an interval now")
	testkit.Check(t, len(predict(result.File{})[1].Predicted) == 0, "predictions without labs")
}

// TestTextHasSentencesAndFeatures writes an advice.
func TestTextHasSentencesAndFeatures(t *testing.T) {
	gain := func(value, low, high float64) map[string]advise.Prediction {
		f := func(by float64) advise.Figure {
			return advise.Figure{Value: value * by, CI95: &[2]float64{low * by, high * by}}
		}
		return map[string]advise.Prediction{advise.WholeNetwork: {Ratio: f(1), Figure: f(12345)}}
	}
	a := advise.Advice{Cluster: advise.Cluster{Nodes: 3, Network: "flannel", Overlay: "vxlan", Proxy: "nftables", Ports: 7,
		Unsupported: []advise.Feature{{Name: "no BGP", Objects: []string{"a\n1. b", "b", "c", "d", "e"}}},
		Unread:      []string{"secrets: forbidden"}},
		Rows: []advise.Row{
			{Path: "cluster-ip/same-node", Workload: "tcp_rr", Now: advise.Figure{Value: 12345},
				Predicted: gain(1.31, 1.24, 1.38)},
			{Path: "cluster-ip/two-nodes", Workload: "tcp_crr", Now: advise.Figure{Value: 1.234},
				Predicted: gain(0.98, 0.9, 1.1)},
		}, Unpredicted: []string{"a reason"}, Notes: []string{"Labs: Not reliable: other programs ran."}}
	var out strings.Builder
	var rows [][]any
	testkit.Succeed(t, a.Write(&out, func(_ []string, all [][]any) error { rows = all; return nil }))
	for _, want := range []string{
		"Now: flannel, overlay vxlan; kube-proxy's mode: nftables; nodes: 3;",
		"1. Mustang as the whole network, to a Service:\n   on one node requests +31 % (+24 to +38 %);\n" +
			"   across nodes connections unclear (−10 to +10 %).\n",
		"2. Mustang in place of kube-proxy only: not predicted.\n",
		"3. kube-proxy's nftables mode only: kube-proxy's mode is nftables.\n", "Not predicted: a reason.\n",
		"Labs: Not reliable: other programs ran.\n",
		"- no BGP: a?1. b, b, c and 2 more\n", "Not read: secrets: forbidden\n",
	} {
		testkit.Check(t, strings.Contains(out.String(), want), "text %q lacks %q", out.String(), want)
	}
	if want := "[cluster-ip/same-node tcp_rr  12300 16200 (15300–17000)  ]"; fmt.Sprint(rows[0]) != want {
		t.Errorf("row %v, want %s", rows[0], want)
	}
}

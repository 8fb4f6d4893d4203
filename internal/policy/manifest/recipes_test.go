// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// cluster has two namespaces with pods, a node and a pod of the host's network.
const cluster = `
{apiVersion: v1, kind: Node, metadata: {name: m0, labels: {zone: a}}, status: {addresses: [{type: InternalIP, address: 10.0.9.1}, {type: Hostname, address: m0}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: m1, labels: {zone: b}}, status: {addresses: [{type: InternalIP, address: 10.0.9.2}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: other, labels: {purpose: production}}}
---
apiVersion: v1
kind: PodList
items:
- {metadata: {name: web, labels: {app: web}}, spec: {nodeName: m0, containers: [{ports: [{name: http, containerPort: 80}, {name: metrics, containerPort: 9090, protocol: UDP}]}]}, status: {podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}
- {metadata: {name: api, labels: {app: bookstore, role: api}}, spec: {nodeName: m0, containers: [{ports: [{name: http, containerPort: 8080}]}]}, status: {podIP: 10.0.0.2}}
- {metadata: {name: db, labels: {app: bookstore, role: db}}, spec: {nodeName: m0}, status: {podIP: 10.0.0.3}}
- {metadata: {name: far, namespace: other, labels: {type: monitoring}}, spec: {nodeName: m0}, status: {podIPs: [{ip: 10.0.0.4}, {ip: "fd00::4"}]}}
- {metadata: {name: near, namespace: third, labels: {type: monitoring}}, spec: {nodeName: m0}, status: {podIP: 10.0.0.5}}
- {metadata: {name: host, labels: {app: web}}, spec: {nodeName: m1, hostNetwork: true}, status: {podIP: 10.0.9.2}}
- {metadata: {name: done, labels: {app: web}}, spec: {nodeName: m0}, status: {phase: Succeeded, podIP: 10.0.0.1}}
---
`

var addresses = strings.NewReplacer("2001:db8:", "2001:db8:", "web", "10.0.0.1", "api", "10.0.0.2", "db", "10.0.0.3",
	"far", "10.0.0.4", "near", "10.0.0.5",
	"m0", "10.0.9.1", "m1", "10.0.9.2")

func networkPolicy(name, spec string) string {
	return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s}, spec: {%s}}\n---\n",
		name, spec)
}

func clusterPolicy(name, tier string, priority int, rules string) string {
	return fmt.Sprintf("{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: "+
		"%s}, "+
		"spec: {tier: %s, priority: %d, subject: {namespaces: {}}, %s}}\n---\n", name, tier, priority, rules)
}

// recipes are the cases of github.com/ahmetb/kubernetes-network-policy-recipes, and of the APIs' own definitions.
// A flow is "source destination protocol/port", and passes or does not.
var recipes = []struct {
	name, policies string
	pass, drop     []string
}{
	{"no policy", "", []string{"api web tcp/80", "8.8.8.8 web tcp/80", "web 8.8.8.8 udp/53"}, nil},
	{
		"deny all to an application", networkPolicy("p", "podSelector: {matchLabels: {app: web}}, ingress: []"),
		[]string{"web api tcp/80", "api db tcp/1", "m0 web tcp/80", "web web tcp/80"},
		[]string{"api web tcp/80", "far web tcp/80", "8.8.8.8 web udp/1", "m1 web tcp/80", "fd00::4 fd00::1 tcp/80",
			"api web icmp/0"},
	},
	{
		"allow only an application of the namespace",
		networkPolicy("p", "podSelector: {matchLabels: {role: api}}, ingress: [{from: [{podSelector: {matchLabels: {app: "+
			"bookstore}}}]}]"),
		[]string{"db api tcp/80", "db api sctp/9", "db api icmp/0"}, []string{"web api tcp/80", "near api tcp/80"},
	},
	{
		"additive: one policy denies, another allows",
		networkPolicy("a", "podSelector: {}") + networkPolicy("b", "podSelector: {matchLabels: {app: web}}, ingress: [{}]"),
		[]string{"far web tcp/80", "8.8.8.8 web tcp/80", "api far tcp/80"}, []string{"web api tcp/80", "api db tcp/80"},
	},
	{
		"deny from other namespaces", networkPolicy("p", "podSelector: {}, ingress: [{from: [{podSelector: {}}]}]"),
		[]string{"api web tcp/80", "db api tcp/80"}, []string{"far web tcp/80", "8.8.8.8 web tcp/80"},
	},
	{
		"allow from all namespaces",
		networkPolicy("p", "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{namespaceSelector: {}}]}]"),
		[]string{"api web tcp/80", "far web tcp/80"}, []string{"8.8.8.8 web tcp/80", "m1 web tcp/80"},
	},
	{
		"allow from a namespace",
		networkPolicy("p", "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{namespaceSelector: {matchLabels: "+
			"{purpose: production}}}]}]"),
		[]string{"far web tcp/80"}, []string{"near web tcp/80", "api web tcp/80"},
	},
	{
		"allow some pods of another namespace",
		networkPolicy("p", "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{namespaceSelector: {matchLabels: "+
			"{kubernetes.io/metadata.name: third}}, podSelector: {matchLabels: {type: monitoring}}}]}]"),
		[]string{"near web tcp/80"}, []string{"far web tcp/80", "api web tcp/80"},
	},
	{
		"two peers are alternatives",
		networkPolicy("p", "podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {purpose: production}}}, "+
			"{podSelector: {matchLabels: {role: db}}}]}]"),
		[]string{"far web tcp/80", "db web tcp/80"}, []string{"api web tcp/80", "near web tcp/80"},
	},
	{
		"allow external clients", networkPolicy("p", "podSelector: {matchLabels: {app: web}}, ingress: [{from: []}]"),
		[]string{"8.8.8.8 web tcp/80", "api web udp/1"}, nil,
	},
	{
		"allow a port of an application",
		networkPolicy("p", "podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 5000}], from: "+
			"[{podSelector: {matchLabels: {role: db}}}]}]"),
		[]string{"db web tcp/5000"}, []string{"db web tcp/5001", "db web udp/5000", "api web tcp/5000", "db web icmp/0"},
	},
	{
		"named ports and ranges on ingress",
		networkPolicy("p", "podSelector: {}, ingress: [{ports: [{port: http}, {protocol: UDP, port: 1000, endPort: 1002}, "+
			"{protocol: SCTP}]}]"),
		[]string{"db web tcp/80", "db api tcp/8080", "db web udp/1000", "db web udp/1002", "db web sctp/7"},
		[]string{"db web tcp/8080", "db api tcp/80", "api db tcp/80", "db web udp/999", "db web udp/1003", "db web udp/80"},
	},
	{
		"deny egress", networkPolicy("p", "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]"),
		[]string{"api web tcp/80", "web web tcp/80", "web m0 tcp/10250"}, []string{"web api tcp/80", "web 8.8.8.8 udp/53",
			"web m1 tcp/10250"},
	},
	{
		"egress only to DNS",
		networkPolicy("p", "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{ports: [{port: 53, "+
			"protocol: UDP}, {port: 53}]}]"),
		[]string{"web 8.8.8.8 udp/53", "web far tcp/53", "db web tcp/80"}, []string{"web 8.8.8.8 udp/54", "web api tcp/80",
			"web far sctp/53"},
	},
	{
		"an egress section isolates both ways", networkPolicy("p", "podSelector: {matchLabels: {app: web}}, egress: [{}]"),
		[]string{"web api tcp/80"}, []string{"api web tcp/80"},
	},
	{
		"rules of a direction that policyTypes leaves out",
		networkPolicy("p", "podSelector: {}, policyTypes: [Ingress], egress: [], ingress: [{}]"),
		[]string{"web api tcp/80", "web 8.8.8.8 tcp/80"}, nil,
	},
	{
		"egress to the cluster only",
		networkPolicy("p", "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: "+
			"[{namespaceSelector: {}}]}]"),
		[]string{"web api tcp/80", "web far tcp/80"}, []string{"web 8.8.8.8 tcp/80", "fd00::1 2001:db8::1 tcp/80"},
	},
	{
		"a named port on egress is the destination's",
		networkPolicy("p", "podSelector: {matchLabels: {role: db}}, policyTypes: [Egress], egress: [{ports: [{port: "+
			"http}, {port: metrics, protocol: UDP}]}]"),
		[]string{"db web tcp/80", "db api tcp/8080", "db web udp/9090"}, []string{"db api tcp/80", "db far tcp/80",
			"db 8.8.8.8 tcp/80", "db web tcp/9090"},
	},
	{
		"a block but for a part",
		networkPolicy("p", "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.7/24, "+
			"except: [192.0.2.128/25]}}]}]"),
		[]string{"192.0.2.1 web tcp/80", "192.0.2.127 web tcp/80"}, []string{"192.0.2.128 web tcp/80", "192.0.3.1 web tcp/80",
			"fd00::4 fd00::1 tcp/80"},
	},
	{
		"a block is allowed that another policy excepts",
		networkPolicy("a", "podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.2/32]}}]}]") +
			networkPolicy("b", "podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.2/32}}]}]"),
		[]string{"api web tcp/80", "far web tcp/80"}, []string{"8.8.8.8 web tcp/80"},
	},
	{
		"an IPv6 block is not one of IPv4",
		networkPolicy("p", "podSelector: {}, ingress: [{from: [{ipBlock: {cidr: '::/0'}}]}]"),
		[]string{"fd00::4 fd00::1 tcp/80", "2001:db8::1 fd00::1 tcp/80"}, []string{"8.8.8.8 web tcp/80", "far web tcp/80"},
	},
	{
		"an expression that a missing label fulfils",
		networkPolicy("p", "podSelector: {matchExpressions: [{key: role, operator: NotIn, values: [db]}]}"),
		[]string{"web db tcp/80"}, []string{"db web tcp/80", "db api tcp/80"},
	},
	{
		"Admin denies what a NetworkPolicy allows",
		clusterPolicy("c", "Admin", 0,
			"ingress: [{action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {type: "+
				"monitoring}}}}]}]") +
			networkPolicy("p", "podSelector: {}, ingress: [{}]"),
		[]string{"api web tcp/80", "8.8.8.8 web tcp/80"}, []string{"far web tcp/80", "near far tcp/80"},
	},
	{
		"Admin accepts what a NetworkPolicy denies",
		clusterPolicy("c", "Admin", 5,
			"ingress: [{action: Accept, from: [{namespaces: {matchLabels: {purpose: production}}}], protocols: [{tcp: "+
				"{destinationPort: {range: {start: 80, end: 90}}}}]}]") +
			networkPolicy("p", "podSelector: {}"),
		[]string{"far web tcp/80", "far web tcp/90"}, []string{"far web tcp/91", "far web udp/80", "near web tcp/80"},
	},
	{
		"Pass leaves it to the NetworkPolicy, over later rules and policies of its tier",
		clusterPolicy("a", "Admin", 1,
			"ingress: [{action: Pass, from: [{namespaces: {matchLabels: {purpose: production}}}]}, {action: Deny, from: "+
				"[{namespaces: {}}]}]") +
			clusterPolicy("b", "Admin", 2, "ingress: [{action: Deny, from: [{namespaces: {}}]}]") +
			networkPolicy("p", "podSelector: {matchLabels: {app: web}}"),
		[]string{"far api tcp/80", "8.8.8.8 api tcp/80"}, []string{"near api tcp/80", "db api tcp/80", "far web tcp/80"},
	},
	{
		"the lower priority number decides",
		clusterPolicy("a", "Admin", 2, "egress: [{action: Deny, to: [{networks: [0.0.0.0/0, '::/0']}]}]") +
			clusterPolicy("b", "Admin", 1,
				"egress: [{action: Accept, to: [{networks: [8.8.8.0/24]}, {nodes: {matchLabels: {zone: b}}}]}]"),
		[]string{"web 8.8.8.8 udp/53", "web m1 tcp/443"}, []string{"web 8.8.4.4 udp/53", "web api tcp/80", "web m0 tcp/1",
			"fd00::1 fd00::4 tcp/1"},
	},
	{
		"Baseline holds where no NetworkPolicy does",
		clusterPolicy("c", "Baseline", 0,
			"ingress: [{action: Deny, from: [{namespaces: {}}]}], egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}], "+
				"protocols: [{udp: {destinationPort: {number: 53}}}]}]") +
			networkPolicy("p", "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}]}]"),
		[]string{"api web tcp/80", "8.8.8.8 api tcp/80", "web 8.8.8.8 tcp/53", "web m0 tcp/53", "m0 api udp/53"},
		[]string{"web api tcp/80", "far web tcp/80", "api far tcp/80", "web 8.8.8.8 udp/53", "web m0 udp/53"},
	},
	{
		"a named port of any protocol", clusterPolicy("c", "Admin", 0,
			"egress: [{action: Deny, to: [{namespaces: {}}], protocols: [{destinationNamedPort: http}, "+
				"{destinationNamedPort: metrics}]}]"),
		[]string{"db api tcp/80", "db web udp/80", "db web tcp/9090"}, []string{"db web tcp/80", "db api tcp/8080",
			"db web udp/9090"},
	},
}

func parseFlow(t *testing.T, text string) policy.Flow {
	t.Helper()
	fields := strings.Fields(strings.ReplaceAll(addresses.Replace(text), "/", " "))
	port := testkit.Must(strconv.ParseUint(fields[3], 10, 16))(t)
	protocol := service.Protocol(1) // ICMP
	if fields[2] != "icmp" {
		protocol = testkit.Must(service.ParseProtocol(fields[2]))(t)
	}
	return policy.Flow{
		Source: netip.MustParseAddr(fields[0]), Destination: netip.MustParseAddr(fields[1]), Protocol: protocol,
		Port: uint16(port),
	}
}

func TestRecipes(t *testing.T) {
	for _, r := range recipes {
		t.Run(r.name, func(t *testing.T) {
			set := testkit.Must(Read(strings.NewReader("---\n" + cluster + r.policies)))(t)
			set.Snapshot.Node = "m0"
			for want, flows := range map[bool][]string{true: r.pass, false: r.drop} {
				for _, text := range flows {
					f := parseFlow(t, text)
					egress, ingress, err := policy.Explain(set.Snapshot, f)
					testkit.Succeed(t, err)
					got := egress.Allow && ingress.Allow
					testkit.Check(t, got == want, "%s: Explain says %v: %s; %s", text, got, egress.Origin, ingress.Origin)
				}
			}
		})
	}
}

func TestExplainNamesTheRule(t *testing.T) {
	set, err := Read(strings.NewReader("---\n" + cluster +
		networkPolicy("web",
			"podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {role: db}}}]}, {ports: "+
				"[{port: http}]}]") +
		clusterPolicy("guard", "Admin", 3, "egress: [{action: Deny, to: [{networks: [8.8.8.0/24]}]}]")))
	testkit.Succeed(t, err)
	for text, want := range map[string]string{
		"api web tcp/80":    "default | NetworkPolicy default/web, rule ingress[1]",
		"db web tcp/1":      "default | NetworkPolicy default/web, rule ingress[0]",
		"far web tcp/1":     "default | NetworkPolicy default/web, default deny of ingress",
		"web 8.8.8.8 tcp/1": "ClusterNetworkPolicy guard (Admin), rule egress[0] | default",
		"web web tcp/1":     "a pod always reaches itself | a pod always reaches itself",
		"m0 web tcp/1":      "default | a pod and its node",
	} {
		egress, ingress, err := policy.Explain(set.Snapshot, parseFlow(t, text))
		testkit.Succeed(t, err)
		wants := strings.Split(want, " | ")
		if !strings.HasPrefix(egress.Origin.String(), wants[0]) || !strings.HasPrefix(ingress.Origin.String(), wants[1]) {
			t.Errorf("%s: %s | %s, want %s", text, egress.Origin, ingress.Origin, want)
		}
	}
}

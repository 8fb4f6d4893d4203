// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The size of the cluster.
const (
	services, perService = 10_000, 5
	nodes                = 1_000
	pods                 = 5_000
	policies             = 5_000
	podsHere             = 30 // on the measured node
)

const namespace = "default"

// fill makes so many objects of each kind.
func (c *cluster) fill(b *testing.B, counts map[string]int) {
	b.Helper()
	create := map[string]func(context.Context, int) error{"nodes": c.createNode, "pods": c.createPod,
		"policies": c.createPolicy, "services": c.createService}
	for kind, n := range counts {
		group, ctx := errgroup.WithContext(b.Context())
		group.SetLimit(32)
		for i := range n {
			group.Go(func() error { return create[kind](ctx, i) })
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

func number(first string, i int) netip.Addr {
	a := netip.MustParseAddr(first).As4()
	n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	n += uint32(i)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

func podName(i int) string { return fmt.Sprintf("pod-%d", i) }

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func (c *cluster) createNode(ctx context.Context, i int) error {
	cidr := netip.PrefixFrom(number("10.128.0.0", i<<8), 24).String()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)},
		Spec:       corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
	}
	created, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	created.Status = corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: number("10.197.1.0", i).String()}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}
	_, err = c.client.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{})
	return err
}

func (c *cluster) createPod(ctx context.Context, i int) error {
	node := 1 + i%(nodes-1)
	if i < podsHere {
		node = 0
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: podName(i), Namespace: namespace, Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%policies)},
		},
		Spec: corev1.PodSpec{NodeName: nodeName(node)},
	}
	detailed(pod)
	created, err := c.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	ip := number("10.128.0.0", node<<8+20+i/nodes).String()
	if i < podsHere {
		ip = number("10.128.0.100", i).String()
	}
	created.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: conditions()}
	_, err = c.client.CoreV1().Pods(namespace).UpdateStatus(ctx, created, metav1.UpdateOptions{})
	return err
}

// createPolicy makes a policy that selects pods by a label, and allows pods with the next label and a block of
// addresses.
func (c *cluster) createPolicy(ctx context.Context, i int) error {
	app := func(i int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprintf("app-%d", i%policies)}}
	}
	port := intstr.FromInt32(8080)
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("policy-%d", i), Namespace: namespace},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *app(i),
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
				From: []networkingv1.NetworkPolicyPeer{
					{PodSelector: app(i + 1)}, {IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(number("172.16.0.0", i<<4),
						28).String()}},
				},
			}},
		},
	}
	_, err := c.client.NetworkingV1().NetworkPolicies(namespace).Create(ctx, policy, metav1.CreateOptions{})
	return err
}

func serviceName(i int) string { return fmt.Sprintf("service-%d", i) }

func clusterIP(i int) netip.AddrPort { return netip.AddrPortFrom(number("10.100.0.0", i), 80) }

func (c *cluster) createService(ctx context.Context, i int) error {
	ip := clusterIP(i).Addr().String()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i), Namespace: namespace},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Name: "http", Port: 80,
				TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if _, err := c.client.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := c.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice(i, madeUp(i)), metav1.CreateOptions{})
	return err
}

// madeUp are the endpoints of a service without clients. Every probeStep-th service is probed, and has a real pod.
func madeUp(i int) []netip.Addr {
	if i%probeStep == 0 {
		return []netip.Addr{backends[0]}
	}
	var all []netip.Addr
	for j := range perService {
		all = append(all, number("10.128.0.0", (1+(i*perService+j)%(nodes-1))<<8+2+(i*perService+j)/nodes%200))
	}
	return all
}

func slice(i int, addresses []netip.Addr) *discoveryv1.EndpointSlice {
	ready, name, port, protocol := true, "http", int32(8080), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i), Namespace: namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}

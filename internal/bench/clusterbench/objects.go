// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// container is the name of the container of each pod, and named the label with the name that a pod has here.
const (
	container = "mustang"
	named     = "mustang-bench/pod"
)

// Nobody runs in the pods.
const nobody = 65534

// afterwards is how long a Job is kept that has ended, in seconds: for a look at why.
const afterwards = 300

// job returns the Job of a pod. It has no privileges, and no limit of CPU time, which would be a part of what is
// measured.
func (c *Cluster) job(p *pod) *batchv1.Job {
	command := []string{Program, PodCommand, "idle"}
	if p.server && !p.host {
		command = append(command, fmt.Sprint(":", probePort))
	}
	labels := map[string]string{managedBy: manager, named: p.name}
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: c.api.namespace, Labels: labels},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(0)), ActiveDeadlineSeconds: new(int64(c.options.Longest.Seconds())),
			TTLSecondsAfterFinished: new(int32(afterwards)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, HostNetwork: p.host, Affinity: onNode(p.node),
					AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
					TerminationGracePeriodSeconds: new(int64(1)),
					SecurityContext: &corev1.PodSecurityContext{
						RunAsNonRoot: new(true), RunAsUser: new(int64(nobody)), RunAsGroup: new(int64(nobody)),
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{{
						Name: container, Image: c.options.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: command,
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
							corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
						}},
						SecurityContext: &corev1.SecurityContext{
							AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
							Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						},
					}},
				},
			},
		},
	}
}

// onNode returns what puts a pod on a node, if there is room. A taint holds it off.
func onNode(name string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}},
			}}},
		}}}
}

// serve makes the Service of a server, and returns its cluster IP.
func (c *Cluster) serve(ctx context.Context, p *pod) (netip.Addr, error) {
	family := corev1.IPv4Protocol
	if c.options.IPv6 {
		family = corev1.IPv6Protocol
	}
	port := func(name string, protocol corev1.Protocol, number int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: number, TargetPort: intstr.FromInt32(number)}
	}
	stored, err := create(ctx, c.api.own(services), &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: c.api.namespace,
			Labels: map[string]string{managedBy: manager}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{named: p.name}, IPFamilies: []corev1.IPFamily{family},
			IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
			Ports: []corev1.ServicePort{
				port("tcp", corev1.ProtocolTCP, servicePort), port("udp", corev1.ProtocolUDP, servicePort),
				port("probe", corev1.ProtocolTCP, probePort),
			},
		},
	})
	if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "ipFamilies") {
		return netip.Addr{}, fmt.Errorf("the cluster lacks cluster IPs of %s", family)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	ip, _, _ := unstructured.NestedString(stored.Object, "spec", "clusterIP")
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("cluster IP of service %s: %w", p.name, err)
	}
	return addr, nil
}

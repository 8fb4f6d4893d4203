// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// container is the name of the container of each pod, and named the label with the name that a pod has here.
const (
	container = "mustang"
	named     = "mustang-bench/pod"
)

// Pods in the network of a node are privileged for the admission of pods.
const namespaceObject = `
apiVersion: v1
kind: Namespace
metadata:
  name: %q
  labels: {%s: %s, pod-security.kubernetes.io/enforce: privileged}
  annotations: {%s: %q}
`

// A pod runs without privileges, and without a limit of CPU time, which would distort the measurement. It is put on
// a node if the node has the resources; a taint keeps it off. A Job that has ended is kept for five minutes, for
// diagnosis.
const jobObject = `
apiVersion: batch/v1
kind: Job
metadata: {name: %[1]s, labels: {%[2]s: %[3]s, %[4]s: %[1]s}}
spec:
  backoffLimit: 0
  activeDeadlineSeconds: %[5]d
  ttlSecondsAfterFinished: 300
  template:
    metadata: {labels: {%[2]s: %[3]s, %[4]s: %[1]s}}
    spec:
      restartPolicy: Never
      hostNetwork: %[6]t
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 1
      securityContext: {runAsNonRoot: true, runAsUser: 65534, runAsGroup: 65534, seccompProfile: {type: RuntimeDefault}}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [%[7]q]}]}]
      containers:
      - name: %[8]s
        image: %[9]q
        imagePullPolicy: IfNotPresent
        command: [%[10]s]
        resources: {requests: {cpu: 100m, memory: 64Mi}}
        securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
`

const serviceObject = `
apiVersion: v1
kind: Service
metadata: {name: %[1]s, labels: {%[2]s: %[3]s}}
spec:
  selector: {%[4]s: %[1]s}
  ipFamilies: [%[5]s]
  ipFamilyPolicy: SingleStack
  ports:
  - {name: tcp, protocol: TCP, port: %[6]d, targetPort: %[6]d}
  - {name: udp, protocol: UDP, port: %[6]d, targetPort: %[6]d}
  - {name: probe, protocol: TCP, port: %[7]d, targetPort: %[7]d}
`

// create makes an object in YAML, whose format takes arguments.
func (a *api) create(ctx context.Context, kind schema.GroupVersionResource, format string,
	args ...any) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var o unstructured.Unstructured
	if err := yaml.Unmarshal(fmt.Appendf(nil, format, args...), &o.Object); err != nil {
		return nil, err
	}
	to := a.own(kind)
	if kind == namespaces {
		to = a.dynamic.Resource(kind)
	} else {
		o.SetNamespace(a.namespace)
	}
	stored, err := to.Create(ctx, &o, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", o.GetKind(), err)
	}
	return stored, nil
}

func (c *Cluster) start(ctx context.Context, p *pod) error {
	command := Program + ", " + PodCommand + ", idle"
	if p.server && !p.host {
		command += fmt.Sprintf(`, ":%d"`, probePort)
	}
	_, err := c.api.create(ctx, jobs, jobObject, p.name, managedBy, manager, named,
		int64(c.options.Longest.Seconds()), p.host, p.node, container, c.options.Image, command)
	return err
}

func (c *Cluster) serve(ctx context.Context, p *pod) (netip.Addr, error) {
	family := "IPv4"
	if c.options.IPv6 {
		family = "IPv6"
	}
	stored, err := c.api.create(ctx, services, serviceObject, p.name, managedBy, manager, named, family, servicePort,
		probePort)
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

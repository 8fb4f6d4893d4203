// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"strings"
	"text/template"

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

//go:embed objects.yaml
var objects string

// create makes an object of a kind, whose template in objects.yaml is executed with values.
func (a *api) create(ctx context.Context, kind schema.GroupVersionResource, values map[string]any,
) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var text bytes.Buffer
	all := template.Must(template.New("").Option("missingkey=error").Parse(objects))
	if err := all.ExecuteTemplate(&text, strings.TrimSuffix(kind.Resource, "s"), values); err != nil {
		return nil, err
	}
	var o unstructured.Unstructured
	if err := yaml.Unmarshal(text.Bytes(), &o.Object); err != nil {
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
	command := []string{Program, PodCommand, "idle"}
	if p.server && !p.host {
		command = append(command, fmt.Sprintf(":%d", probePort))
	}
	_, err := c.api.create(ctx, jobs, map[string]any{"Name": p.name, "Longest": c.options.Longest, "Host": p.host,
		"Node": p.node, "Container": container, "Image": c.options.Image, "Command": command})
	return err
}

func (c *Cluster) serve(ctx context.Context, p *pod) (netip.Addr, error) {
	family := "IPv4"
	if c.options.IPv6 {
		family = "IPv6"
	}
	stored, err := c.api.create(ctx, services, map[string]any{"Name": p.name, "Family": family, "Port": servicePort,
		"Probe": probePort})
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

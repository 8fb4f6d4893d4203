// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// binary are the kinds that are read in Protocol Buffers: an object of each, and a list. Policies are read in JSON,
// which has the fields of later versions too: a policy with an unknown field is refused.
var (
	binary = map[string][2]runtime.Object{
		Nodes.Resource:          {&corev1.Node{}, &corev1.NodeList{}},
		Namespaces.Resource:     {&corev1.Namespace{}, &corev1.NamespaceList{}},
		Pods.Resource:           {&corev1.Pod{}, &corev1.PodList{}},
		Services.Resource:       {&corev1.Service{}, &corev1.ServiceList{}},
		EndpointSlices.Resource: {&discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}},
	}
	scheme = func() *runtime.Scheme {
		s := runtime.NewScheme()
		utilruntime.Must(corev1.AddToScheme(s))
		utilruntime.Must(discoveryv1.AddToScheme(s))
		metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
		return s
	}()
	codecs = serializer.NewCodecFactory(scheme)
)

// empty returns an object of the Go type of a kind, and a list.
func (k Kind) empty() (object, list runtime.Object) {
	if of, ok := binary[k.Resource]; ok {
		return of[0], of[1].DeepCopyObject()
	}
	of := &unstructured.Unstructured{}
	if k == NetworkPolicies { // a reflector then ignores objects of other kinds
		of.SetGroupVersionKind(schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: "NetworkPolicy"})
	}
	return of, &unstructured.UnstructuredList{}
}

// errNoList is the error of an answer that is not a list: objects missing from it are not gone.
var errNoList = errors.New("not a list")

func (c *Client) listOf(ctx context.Context, k Kind, o metav1.ListOptions) (list runtime.Object, err error) {
	_, list = k.empty()
	err = c.request(k, o).Do(ctx).Into(list)
	if all, ok := list.(*unstructured.UnstructuredList); ok && err == nil && !k.lists(all.GetKind()) {
		err = errNoList
	}
	if err == nil {
		err = meta.EachListItem(list, func(item runtime.Object) error {
			if item.(metav1.Object).GetName() == "" {
				return errNoList
			}
			return nil
		})
	}
	if err == nil {
		if head, _ := meta.ListAccessor(list); head.GetResourceVersion() == "" {
			err = errNoList
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list of %s: %w", k.Resource, err)
	}
	return list, nil
}

func (k Kind) lists(list string) bool {
	one, is := strings.CutSuffix(list, "List")
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: one})
	return is && plural.Resource == k.Resource
}

func (c *Client) watchOf(ctx context.Context, k Kind, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.request(k, o).Watch(ctx)
}

// request returns a request that is not repeated: a reflector does that, after the error was reported.
func (c *Client) request(k Kind, o metav1.ListOptions) *rest.Request {
	path, client := "/apis/"+k.Group+"/"+k.Version+"/"+k.Resource, c.rest
	if k.Group == "" {
		path = "/api/" + k.Version + "/" + k.Resource
	}
	if binary[k.Resource][0] != nil {
		client = c.typed
	}
	return client.Get().MaxRetries(0).AbsPath(path).SpecificallyVersionedParams(&o, metav1.ParameterCodec,
		schema.GroupVersion{Version: "v1"})
}

// encode returns an object in JSON without what the agent does not read, and so equal for most updates of a status.
func encode(object any) ([]byte, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork,
			Containers: ports(o.Spec.Containers), InitContainers: ports(o.Spec.InitContainers)}
		o.Status = corev1.PodStatus{Phase: o.Status.Phase, PodIP: o.Status.PodIP, PodIPs: o.Status.PodIPs}
		o.DeletionTimestamp, o.DeletionGracePeriodSeconds = nil, nil
	case *corev1.Node:
		status := corev1.NodeStatus{Addresses: o.Status.Addresses}
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable || c.Type == corev1.NodeReady {
				status.Conditions = append(status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
			}
		}
		o.Status = status
	case *corev1.Service:
		o.Status.Conditions = nil
	case *unstructured.Unstructured:
		delete(o.Object, "status")
	}
	m := object.(metav1.Object)
	m.SetManagedFields(nil)
	m.SetOwnerReferences(nil)
	m.SetFinalizers(nil)
	m.SetResourceVersion("")
	m.SetGeneration(0)
	annotations := map[string]string{}
	for _, key := range []string{mirror, triggered, KeyAnnotation} {
		if value, ok := m.GetAnnotations()[key]; ok {
			annotations[key] = value
		}
	}
	m.SetAnnotations(annotations)
	if o := object.(runtime.Object); o.GetObjectKind().GroupVersionKind().Empty() { // of Protocol Buffers
		all, _, err := scheme.ObjectKinds(o)
		if err != nil {
			return nil, err
		}
		o.GetObjectKind().SetGroupVersionKind(all[0])
	}
	return json.Marshal(object)
}

func ports(all []corev1.Container) (out []corev1.Container) {
	for _, c := range all {
		out = append(out, corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy})
	}
	return out
}

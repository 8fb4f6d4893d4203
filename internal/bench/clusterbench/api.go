// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"

	"mustang/internal/advise"
	"mustang/internal/kube"
)

type api struct {
	dynamic dynamic.Interface
	config  *rest.Config
}

var (
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	nodes      = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	events     = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	services   = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	jobs       = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	daemonSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
)

const (
	// namespace holds the objects of a run. While it exists, a second run is refused: each would slow the other.
	namespace = "mustang-bench"
	managedBy = "app.kubernetes.io/managed-by" // label of all objects; its value is namespace

	answerTime  = 15 * time.Second       // limits a request
	removalTime = 90 * time.Second       // limits the removal of a namespace
	poll        = 250 * time.Millisecond // the pause between looks at what changes
)

func (a *api) own(kind schema.GroupVersionResource) dynamic.ResourceInterface {
	return a.dynamic.Resource(kind).Namespace(namespace)
}

func list[T any](ctx context.Context, from dynamic.ResourceInterface, selector string) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	found, err := from.List(ctx, metav1.ListOptions{LabelSelector: selector})
	var all []T
	for i := 0; err == nil && i < len(found.Items); i++ {
		var t T
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(found.Items[i].Object, &t)
		all = append(all, t)
	}
	if err != nil {
		return nil, fmt.Errorf("list what the cluster has: %w", err)
	}
	return all, nil
}

func (a *api) removeNamespace(note func(string)) error {
	note("removing namespace " + namespace)
	ctx, cancel := context.WithTimeout(context.Background(), removalTime)
	defer cancel()
	space := a.dynamic.Resource(namespaces)
	err := space.Delete(ctx, namespace, metav1.DeleteOptions{})
	if err == nil {
		err = wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
			_, err := space.Get(ctx, namespace, metav1.GetOptions{})
			return false, err
		})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("remove namespace %s: %w", namespace, err)
}

const (
	pageItems = 50              // a tenant's objects can have a megabyte each
	readTime  = 2 * time.Minute // limits the reading of all objects of a kind
)

// Reader returns a function that reads objects of the cluster.
func (a Access) Reader() (advise.Reader, error) {
	api, err := a.connect()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, kind advise.Kind, do func(advise.Object)) error {
		ctx, cancel := context.WithTimeout(ctx, readTime)
		defer cancel()
		from := api.dynamic.Resource(kind.GroupVersionResource)
		if kind.Name != "" {
			o, err := from.Namespace(kind.Namespace).Get(ctx, kind.Name, metav1.GetOptions{})
			if err == nil {
				do(*o)
			}
			return err
		}
		pages := pager.New(func(ctx context.Context, page metav1.ListOptions) (runtime.Object, error) {
			return from.List(ctx, page)
		})
		pages.PageSize = pageItems
		return pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
			do(*o.(*advise.Object))
			return nil
		})
	}, nil
}

// ExecCommand is the hidden subcommand of mustang whose main calls [Exec].
const ExecCommand = "cluster-exec"

// Access is how to reach a cluster, as kubectl does: a file and a context in it. The default file is $KUBECONFIG or
// ~/.kube/config, else the service account of the process's pod. The default context is the file's current one.
type Access struct {
	Kubeconfig, Context string
}

func (a Access) connect() (*api, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: a.Context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		err = fmt.Errorf("no cluster in %s: name a kubeconfig file by --kubeconfig or $KUBECONFIG",
			strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	config.UserAgent = "mustang-bench"
	config.QPS, config.Burst = 20, 50 // requests per second, and at once
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &api{dynamic: client, config: config}, nil
}

func (a Access) command(exe, pod string) []string {
	return []string{exe, ExecCommand, a.Kubeconfig, a.Context, pod}
}

// Exec runs a command in a pod, with the arguments of [ExecCommand]: file, context, pod, command. It ends
// when the command does, or when ctx ends.
func Exec(ctx context.Context, args []string, streams kube.ExecStreams) error {
	if len(args) < 4 {
		return errors.New("want KUBECONFIG CONTEXT POD COMMAND")
	}
	a, err := (Access{Kubeconfig: args[0], Context: args[1]}).connect()
	if err != nil {
		return err
	}
	return a.exec(ctx, args[2], args[3:], streams)
}

const container = "mustang" // the name of the container of each pod

func (a *api) exec(ctx context.Context, pod string, command []string, streams kube.ExecStreams) error {
	return kube.Exec(ctx, a.config, kube.ExecCommand{Namespace: namespace, Pod: pod, Container: container,
		Words: command}, streams)
}

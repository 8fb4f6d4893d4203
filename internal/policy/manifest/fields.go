// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/document"
)

// anything is a field of which only the name is read.
type anything struct{}

// UnmarshalJSONFrom skips the value.
func (*anything) UnmarshalJSONFrom(d *jsontext.Decoder) error { return d.SkipValue() }

// checkFields refuses fields of an object, and of its metadata, that are not those of Kubernetes' ObjectMeta and of the objects that are read.
func checkFields(data jsontext.Value) error {
	var of struct {
		APIVersion anything `json:"apiVersion"`
		Kind       anything `json:"kind"`
		Spec       anything `json:"spec"`
		Status     anything `json:"status"`
		Metadata   struct {
			Name                       anything `json:"name"`
			GenerateName               anything `json:"generateName"`
			Namespace                  anything `json:"namespace"`
			SelfLink                   anything `json:"selfLink"`
			UID                        anything `json:"uid"`
			ResourceVersion            anything `json:"resourceVersion"`
			Generation                 anything `json:"generation"`
			CreationTimestamp          anything `json:"creationTimestamp"`
			DeletionTimestamp          anything `json:"deletionTimestamp"`
			DeletionGracePeriodSeconds anything `json:"deletionGracePeriodSeconds"`
			Labels                     anything `json:"labels"`
			Annotations                anything `json:"annotations"`
			OwnerReferences            anything `json:"ownerReferences"`
			Finalizers                 anything `json:"finalizers"`
			ManagedFields              anything `json:"managedFields"`
			ClusterName                anything `json:"clusterName"` // until Kubernetes 1.24
		} `json:"metadata"`
	}
	return document.Decode(data, &of, json.RejectUnknownMembers(true))
}

// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// Stored is an object and its place in etcd.
type Stored struct {
	Key    string // for example services/specs/default/web
	Object runtime.Object
}

// Store writes objects into etcd, as kube-apiserver stores them: with all defaults, and without
// a resourceVersion. kube-apiserver learns of them by its watch. It is for large numbers of
// Services: kube-apiserver itself (v1.37.1) counts all ClusterIPs for each one that it allocates.
func (c *ControlPlane) Store(ctx context.Context, objects []Stored) error {
	type put struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	type operation struct {
		Put put `json:"requestPut"`
	}
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	var transaction struct {
		Success []operation `json:"success"`
	}
	for i, o := range objects {
		kinds, _, err := scheme.Scheme.ObjectKinds(o.Object)
		if err != nil {
			return err
		}
		o.Object.GetObjectKind().SetGroupVersionKind(kinds[0])
		var value bytes.Buffer
		if err := encoder.Encode(o.Object, &value); err != nil {
			return fmt.Errorf("encode %s: %w", o.Key, err)
		}
		transaction.Success = append(transaction.Success, operation{put{
			Key:   base64.StdEncoding.EncodeToString([]byte("/registry/" + o.Key)),
			Value: base64.StdEncoding.EncodeToString(value.Bytes()),
		}})
		const maxOperations = 128 // etcd's limit for a transaction (--max-txn-ops)
		if len(transaction.Success) < maxOperations && i < len(objects)-1 {
			continue
		}
		body, err := json.Marshal(transaction)
		if err != nil {
			return err
		}
		if _, err := c.RequestEtcd(ctx, "/v3/kv/txn", string(body)); err != nil {
			return err
		}
		transaction.Success = transaction.Success[:0]
	}
	return nil
}

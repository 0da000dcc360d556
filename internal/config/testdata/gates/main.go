// SPDX-License-Identifier: Apache-2.0

// Command gates prints the feature gates that kube-proxy knows, one in a line:
// name, stage, default, and whether that is the only value. It is run within the
// module that builds kube-proxy:
//
//	cd test/cluster/oracle/tools && go run ../../../../internal/config/testdata/gates/main.go > ../../../../internal/config/gates.txt
package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	_ "k8s.io/kubernetes/cmd/kube-proxy/app"
)

func main() {
	all := utilfeature.DefaultFeatureGate.DeepCopy().GetAll()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		spec := all[name]
		fmt.Println(name, cmp.Or(string(spec.PreRelease), "GA"), spec.Default, spec.LockToDefault)
	}
}

"""A planner's case in small, in Megatron-Core's terms: two ranks of tp=2 feed one of tp=1."""

import copy


def tensor(name, shape, ranks, dim=None, rank=0):
    return {"name": name, "resolved_name": name, "shape": shape, "dtype": "bfloat16",
            "element_size": 2, "is_tp": dim is not None, "partition_dim": dim or 0,
            "partition_stride": 1, "partition_sizes": None, "is_ep": False, "num_experts": None,
            "owner_rank": rank, "tensor_parallel_group_ranks": ranks,
            "expert_parallel_group_ranks": None, "data_parallel_group_ranks": [rank],
            "pipeline_parallel_group_ranks": [rank], "global_expert_index": None}


def transfer(task, sender, name, source, destination):
    return {"task_id": task, "src_rank": sender, "dst_rank": 2, "src_name": name, "dst_name": name,
            "resolved_name": name, "src_slice": source, "dst_slice": destination}


CASE = {
    "name": "small", "world_size": 3, "collocated": False,
    "src_layout": {"tp": 2, "pp": 1, "dp": 1, "ep": 1, "etp": 1},
    "dst_layout": {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "etp": 1},
    "ranks": [
        {"rank": 0, "src": [tensor("fc", [4, 6], [0, 1], 0), tensor("norm", [5], [0, 1])],
         "dst": []},
        {"rank": 1, "src": [tensor("fc", [4, 6], [0, 1], 0, 1), tensor("norm", [5], [0, 1], None, 1)],
         "dst": []},
        {"rank": 2, "src": [],
         "dst": [tensor("fc", [8, 6], [2], 0, 2), tensor("norm", [5], [2], None, 2)]},
    ],
    "transfers": [
        transfer(0, 0, "fc", [[0, 4], [0, 6]], [[0, 4], [0, 6]]),
        transfer(1, 1, "fc", [[0, 4], [0, 6]], [[4, 8], [0, 6]]),
        transfer(2, 0, "norm", [[0, 5]], [[0, 5]]),
    ],
}


def case():
    return copy.deepcopy(CASE)

"""The oracle: what `tf.distribute` was observed to do, case by case, as expectations of Replicax.

Recorded with TensorFlow 2.21 on two CPU devices, for MirroredStrategy ("mirrored"),
CentralStorageStrategy ("central"), OneDeviceStrategy ("onedev") and the default strategy ("default").

    data/*.json      every recorded case: its section, its name, and what each kind of strategy gave
    describe.py      our values in the recorded notation, and the comparison of two descriptions
    world.py         the strategies and the small vocabulary that the cases are written in
    cases_*.py       the same cases, written with Replicax; `LEFT_OUT` names those that can't be
    differences.py   where Replicax means to differ: why, and exactly what it gives instead
    recorded.py      the cases joined with all of this
    test_oracle.py   one test for each section and kind, and one that no case is unaccounted for

`python -m tests.oracle` prints the table of counts.
"""
